"""Threads that run one compiled function together, and how they share its work."""
