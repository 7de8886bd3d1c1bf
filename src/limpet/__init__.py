"""Limpet, a container network for the edge: every pod keeps its address."""

__version__ = "0.1.0"
