"""Commands by which Limpet gets onto a machine, into a cluster, and off again.

Each file has one command or noun; what it does stands in a room of `limpet.cli` of its own.
"""
