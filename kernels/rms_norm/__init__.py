"""Root-mean-square norm, with the residual addition before it."""
