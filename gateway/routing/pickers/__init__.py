"""Plugins that choose among rated endpoints."""
