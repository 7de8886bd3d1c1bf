"""WireGuard: the kernel's by netlink, a userspace one at its socket.

The codecs are pure.
"""
