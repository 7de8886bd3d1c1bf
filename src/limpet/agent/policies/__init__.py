"""Network policies in the agent: what is known of them, kept on disk, given to the datapath's part,
and told to people.

Call `slot.PolicySlot`, which imports what keeps them only in agents that have any. Must not import
`agent.main` or `agent.wiring`.
"""
