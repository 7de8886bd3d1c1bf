"""Limpet in chains with the reference plugins, and as their IPAM plugin."""
