"""Limpet: a container network for the edge. Every pod keeps its address and stays reachable by it."""

__version__ = "0.1.0"
