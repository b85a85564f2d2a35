"""Servers of other owners, as the last resort of a fallback chain."""
