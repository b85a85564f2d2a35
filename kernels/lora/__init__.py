"""Low-rank adapters, another for each row."""
