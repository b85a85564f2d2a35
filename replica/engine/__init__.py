"""The engine: an asynchronous facade in the HTTP process, and a process of its own that steps."""
