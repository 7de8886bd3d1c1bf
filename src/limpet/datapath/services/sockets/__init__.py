"""Services at the socket, by eBPF: who connects to a Service's address is connected to an endpoint.

Call `side.SocketSide`, or where nobody is to be served so `pins_apply.remove_pins` and then
`attached_apply.detach_programs`. It is beside nftables, never in its place: what programs here do
not know, they leave to the table. `layout`, `plan` and `looks` are pure; `apply` loads
`bpf/services.bpf.c`, fills its maps and attaches it.
Must not import `services.part` or `services.apply`.
"""
