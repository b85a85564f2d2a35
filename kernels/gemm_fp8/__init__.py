"""Linear over float8 weights and activations."""
