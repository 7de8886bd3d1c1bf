"""Names for the pods of this node: Services as they are kept on disk, all others from upstreams.

Call `process.answer_names`: a process of its own (`limpet dns serve`), which outlives the agent.
`names`, `resolver`, `wire` and `forward.forwarder` decide, pure; the rest is sockets, and
`handover` what becomes of them at its end, `status` what is told of it. Imports nothing of Limpet
but `services`, `linux` and `base`.
"""
