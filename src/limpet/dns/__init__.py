"""Names for the pods of this node: Services as they are kept on disk, all others from upstreams.

A process of its own (`process`, `limpet dns serve`), which outlives the agent. `names`, `resolver`,
`wire` and `forward` decide, pure; the rest is sockets, and `handover` what becomes of them at its
end. It imports `services`, `linux` and `base` only; an agent imports `handover.held` alone.
"""
