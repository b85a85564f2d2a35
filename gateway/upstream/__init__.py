"""The way to the replicas."""
