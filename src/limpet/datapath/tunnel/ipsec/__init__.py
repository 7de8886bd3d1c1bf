"""IPsec by strongSwan's VICI interface; loaded only where the cluster's network names it.

`state`, `plan` and `codec` are pure.
"""
