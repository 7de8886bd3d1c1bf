"""Commands by which Limpet gets onto a machine, into a cluster, and off again.

Add one as a file (`install`, `join`), and to the table of `cli.main`. Must not import `linux` or
`datapath`: what a command does stands in a room of `limpet.cli` of its own.
"""
