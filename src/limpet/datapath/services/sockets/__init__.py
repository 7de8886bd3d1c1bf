"""Services at the socket, by eBPF: who connects to a Service's address is connected to an endpoint.

Call `side.SocketSide`, or `pins_apply.remove_pins` where nobody is to be served so. It is beside
nftables, never in its place: what programs here do not know, they leave to the table. `layout`,
`plan` and `looks` are pure; `apply` loads `bpf/services.bpf.c`, fills its maps and attaches it.
Must not import `services.part` or `services.apply`.
"""
