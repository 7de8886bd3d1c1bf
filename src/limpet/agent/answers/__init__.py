"""What a person may ask a running agent: the verbs behind `limpet status`, `ipam`, `path`, `peer`.

Call `verbs.Admin`; its answers are structs of `agent.status`. Nothing here changes the cluster, and
`cluster` and `path` are imported only where the node is in one: they bring a cluster's side. Must
not import `agent.main` or `agent.dispatch`, which ask it.
"""
