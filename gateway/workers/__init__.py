"""Several processes behind one port: each a gateway of its own, down to its boot id."""
