"""`limpet bugreport`: all that whoever mends a node asks for, in one archive without secrets.

Call `archive.write_report`; `pieces` says what is in it, `secrets` what is left out. Nothing here
changes the node; it works without an agent, and as far as it may without root. Must not import
`cli.commands`, nor `agent` but `agent.client` and `agent.settings`.
"""
