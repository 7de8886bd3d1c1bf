"""Limpet, a container network for the edge: every pod keeps its address.

Call `__main__.main`, as the command `limpet` does; ARCHITECTURE.md says what each room is for.
Imports nothing of Limpet but its version: what stands here, every process loads.
"""

from limpet._version import __version__

__all__ = ["__version__"]
