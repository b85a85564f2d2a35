"""Plugins that rate endpoints from 0 to 1."""
