"""Names that are not the cluster's: asked of upstreams, remembered, and told when those are away.

Call `Forwarder`, a state machine that gets time and randomness passed in; `sockets` carries out
what it says, `upstreams` reads whom to ask. Must not import `dns` but `wire`: nothing here knows
the cluster's names.
"""
