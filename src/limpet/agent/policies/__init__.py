"""Network policies in the agent: what is known of them, kept on disk, given to the datapath's part,
and told to people. Imported by agents that have any only."""
