"""IPsec by strongSwan's VICI interface; loaded only where the cluster's network names it.

Call `apply.IpsecKernel` and `process.IpsecProcess`. `state`, `plan` and `codec` are pure. Must not
import `wireguard`, `tunnel.part` or `tunnel.setup`.
"""
