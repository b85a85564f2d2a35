"""A fleet on a virtual clock: the autoscaler's own decision beside the public ones."""
