"""`limpet connectivity test`: pods on nodes that try whether they reach each other.

Call `run.run`, which makes the pods at the API server and takes them away; `prober` and `answerer`
are what runs in them; `tasks` is what the two halves say to each other, `report` what a person
reads, both pure. Nothing here may need an agent, a controller, or a way from this machine to any
node. Must not import `controller`, nor `agent` but `agent.client` and
`agent.status.paths`.
"""
