"""Probes of what people ask for, and of what is written down for them."""
