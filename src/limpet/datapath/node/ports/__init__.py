"""Port security: what each pod of the node may send from, held in a table of nftables.

`plan`, `diff` and `ruleset` are pure; `part` is one of the loop, asked also before a pod gets its
interface. Must not import the rest of the node's part but for pods' attachments.
"""
