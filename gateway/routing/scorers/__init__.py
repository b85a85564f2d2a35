"""Plugins that say what a request would cost at each endpoint, in tokens: the least is best."""
