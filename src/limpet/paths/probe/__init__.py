"""Probes between nodes: messages, their codec, and the ports they go through.

Call `port.ProbePort`; `messages` and `codec` are pure. Must not import `prober`, `proven`, nor
`ladder` but `ladder.probe_state`.
"""
