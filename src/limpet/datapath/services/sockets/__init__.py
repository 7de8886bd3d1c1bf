"""Services at the socket, by eBPF: who connects to a Service's address is connected to an endpoint.

Call `side.SocketSide`. It is beside nftables, never in its place: what programs here do not know,
they leave to the table. `layout` and `plan` are pure; `apply` loads `bpf/services.bpf.c`, fills its
maps and attaches it. Must not import `services.part` or `services.apply`.
"""
