"""One product for each group of rows that share a matrix."""
