"""Rotation, and the write of keys and values into their slots, at once."""
