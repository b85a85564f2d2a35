"""Rotary position embedding, and the write of keys and values to their blocks."""
