"""What crosses a process boundary: frozen messages, names, and pure functions over them.

No client, no I/O, no settings: every service imports this package, and it imports none of them.
"""
