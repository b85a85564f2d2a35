"""Whole blocks of a KV cache, gathered and scattered."""
