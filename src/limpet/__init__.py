"""Limpet, a container network for the edge: every pod keeps its address."""

from limpet._version import __version__

__all__ = ["__version__"]
