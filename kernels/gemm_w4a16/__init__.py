"""Linear over 4-bit weights and 16-bit activations."""
