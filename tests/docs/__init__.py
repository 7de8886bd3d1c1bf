"""What docs/ tells is true: links lead somewhere, settings are known, each command block was run.

A block of commands is fenced as `console`, and its first line says in which world it runs:
CONTRIBUTING.md tells how to write one; `pages.py` reads them, `worlds.py` makes the worlds.
"""
