"""Port security: what each pod of the node may send from, held in a table of nftables.

Add `part.PortPart` to the loop; `pod.guards` asks it also before a pod gets its interface. `plan`,
`diff` and `ruleset` are pure. Must not import `datapath.node` but `pod.attachment`.
"""
