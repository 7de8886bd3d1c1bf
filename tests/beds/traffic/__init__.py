"""Who asks, sends and serves in a bed, and what became of it."""
