"""The admin API: policies and keys as people edit them.  A process and a port of its own."""
