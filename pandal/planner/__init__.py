"""How many GPUs, at what cost, how fast: by arithmetic, before a dollar is spent."""
