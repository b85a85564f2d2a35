"""Threads that run one compiled function together, and the barrier they meet at inside it."""
