"""y = x W^T with W kept as it was shipped: float32, bfloat16, or GGUF codes."""
