"""A relay: joins pairs of ports, hands on their packets, forgets them when they are idle.

Call `service`; `pairs` decides, pure.
"""
