"""Network policies of this node's pods in the kernel: nftables, looked up by the pod's address.

Add `part.PolicyPart` to the loop. `table` is a table as a value and its difference from another,
`ruleset` plans the two of ours. What the policies mean is in `limpet.policies`. Must not import
`node`, `overlay`, `datapath.services` or `tunnel`, the other parts.
"""
