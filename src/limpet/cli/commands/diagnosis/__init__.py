"""Commands that find out what is wrong, and explain it.

Each file has one command or noun; what it does stands in a room of `limpet.cli` of its own.
"""
