"""What is taken of those who administer the cluster, or look into it by commands: they may err, and
their tools more so."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

SELECTOR = Bound("a selector of nodes", 1_024, "characters", Above.REFUSED)
COMMUNITIES = Bound("communities of one node", 64, "communities", Above.REFUSED)
"""A grant larger than its limit is taken by no node, as with what is behind it."""
BEHIND = Bound("prefixes behind one node", 64, "prefixes", Above.REFUSED)
POLICY_BODY = Bound("a policy, as JSON", 32 << 10, "bytes", Above.REFUSED)
"""Neighbours tell it each other in one datagram."""
PAGE_TOKENS = Bound("tokens of the page", 256, "tokens", Above.REFUSED)
PAGE_TOKEN_S = Bound("time that one of them is good", 31_536_000, "seconds", Above.REFUSED)
JOIN_TOKEN_S = Bound("time that a join token is good", 31_536_000, "seconds", Above.REFUSED)
EVENTS_ASKED = Bound(
    "events of a node or a controller in one answer", 2_000, "events", Above.REFUSED
)
EVENTS_READ = Bound(
    "questions for events that are on the disk alone, at once", 1, "questions", Above.WAITS
)
"""All that is there is read for each."""
LOOKED_AT = Bound(
    "nodes to which a node watches its way by itself, since somebody looks", 64, "nodes", Above.CUT
)
ADMIN_CONNECTIONS = Bound(
    "connections to the controller of one account of Kubernetes that may administer it",
    32,
    "connections",
    Above.OLDEST_OUT,
)
ADMIN_BODY = Bound("what a command sends to the controller", 1 << 20, "bytes", Above.REFUSED)
LISTED_PODS = Bound(
    "pods in one answer of the controller, which is asked for the others then",
    3 << 20,
    "bytes",
    Above.WAITS,
)
"""One node has 2.5 MiB of them at most, with its name at each; an answer by an API server's road
has 4 MiB."""
