"""Nodes that serve Services, and an API server that tells of them."""
