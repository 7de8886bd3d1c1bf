"""What the agent says to the command line; both import it, and JSON output has the same keys.

Take `node.Status` and what stands beside it; `said` is the root of all. A struct that would have
more than a dozen fields is put together of nouns, so that a person's JSON stays flat. Imports
nothing of Limpet but `ipam.leases` and `relay.status`.
"""
