"""The data plane: authenticate, admit, route, relay, meter."""
