"""Drawing tokens from logits: temperature, top-k, top-p and min-p without a sort."""
