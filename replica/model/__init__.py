"""Model files, tokenizers and the forward pass."""
