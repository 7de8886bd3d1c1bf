"""The IP controller: grants address segments to nodes and keeps the record of the cluster.

Call `main.main`, as `limpet controller` does. Must not import what is a node's, `agent`,
`cloud`, `cni`, `datapath`, `dns`, `ipam`, `nat` or `relay`, nor `paths` but `paths.report`.
"""
