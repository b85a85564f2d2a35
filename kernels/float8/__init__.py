"""What float8 numbers are, for kernels that write them."""
