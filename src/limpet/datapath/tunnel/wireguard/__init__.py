"""WireGuard: the kernel's by netlink, a userspace one at its socket.

Call `apply.TunnelKernel` and `process.WireguardProcess`. The codecs are pure. Must not import
`ipsec`, `tunnel.part` or `tunnel.setup`.
"""
