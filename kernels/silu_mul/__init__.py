"""The gate of a feed-forward layer: silu(gate) * up."""
