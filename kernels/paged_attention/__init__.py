"""Causal attention over a context that lies scattered in blocks."""
