"""Probes of what people ask for, write at an API server, and of what is written down for them."""
