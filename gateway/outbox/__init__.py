"""Usage events on their way out: durable first, shipped later."""
