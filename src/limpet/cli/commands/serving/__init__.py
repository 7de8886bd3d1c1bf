"""Commands about what a node does for its pods' traffic: Services and network policies.

`limpet.cli.main` names them; `cluster` has one of them under its noun.
"""
