"""Commands that find out what is wrong, and explain it.

Add one as a file (`doctor`, `trace`), and to the table of `cli.main`. Must not import `linux` or
`datapath`: what a command does stands in a room of `limpet.cli` of its own.
"""
