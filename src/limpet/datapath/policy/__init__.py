"""Network policies of this node's pods in the kernel: nftables, looked up by the pod's address.

`table` is a table as a value and its difference from another, `ruleset` plans the two of ours,
`part` keeps them. What the policies mean is in `limpet.policies`. Must not import other parts.
"""
