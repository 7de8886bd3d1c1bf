"""What goes through the node's tunnels: who is active, who never answers, what a person may ask.

Call `watch`; `activity` is pure, with times passed in. Must not import `ipsec` or `tunnel.setup`.
"""
