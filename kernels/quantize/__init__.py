"""Rows of float32 as int8 codes with a scale per group."""
