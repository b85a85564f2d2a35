"""Plugins that remove endpoints."""
