"""What a node takes from other members of its cluster, and the controller from its nodes."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

ABSENT_ADDRESSES = Bound(
    "addresses of pods that are gone, of one node", 256, "addresses", Above.REFUSED
)
SEQUENCE = Bound(
    "sequence of what a node says itself",
    (1 << 47) - 1,
    "documents before it",
    Above.REFUSED,
)
"""The highest version of any document (`signers.MAX_VERSION`); a node that says something each
second for ever is far from it. Above there is no number by which the node could go on over one that
was signed with its key."""
UNSIGNED_STEP = Bound(
    "step to a sequence of this node's that the controller tells and does not show",
    1 << 32,
    "documents",
    Above.DROPPED,
)
TOLD_PODS = Bound("pods of one document about a node's pods", 64, "pods", Above.REFUSED)
TOLD_PODS_BODY = Bound("a document about a node's pods", 48 << 10, "bytes", Above.REFUSED)
TOLD_PARTS = Bound("documents about one node's pods", 16, "documents", Above.REFUSED)
TOLD_POD_ADDRESSES = Bound(
    "addresses of a pod in a document about a node's pods", 16, "addresses", Above.REFUSED
)
ABSENCE_BODY = Bound(
    "a document about pods that are gone, of one node", 16 << 10, "bytes", Above.REFUSED
)
PRESENCE_BODY = Bound("what a node says of itself", 4 << 10, "bytes", Above.REFUSED)
PRESENCE_ADDRESSES = Bound("addresses that a node says it has", 32, "addresses", Above.REFUSED)
PRESENCE_ENDPOINTS = Bound("endpoints that a node says it has", 32, "endpoints", Above.REFUSED)
PRESENCE_OBJECTS = Bound(
    "objects with presences of one node, that a controller keeps of those at the API server",
    8,
    "objects",
    Above.NOT_KEPT,
)
"""A node's account may create them under names of its own."""
PRESENCE_BOOT_ID = Bound("name of a node's boot, as it says", 64, "characters", Above.REFUSED)

# Reports of pods, to the controller

REPORTED_PODS = Bound("pods in the controller's record of one node", 4_096, "pods", Above.REFUSED)
REPORTED_BYTES = Bound(
    "the controller's record of one node's pods", 1 << 20, "bytes", Above.REFUSED
)
REPORT_BODY = Bound("body of one report of pods", 256 << 10, "bytes", Above.REFUSED)
REPORTED_NAME = Bound(
    "name of a pod, its namespace or its network in a report", 253, "characters", Above.REFUSED
)
REPORTED_INTERFACE_NAME = Bound(
    "name of a pod's interface in a report", 15, "characters", Above.REFUSED
)
REPORTED_POD_ADDRESSES = Bound(
    "addresses of one interface of a pod in a report", 16, "addresses", Above.REFUSED
)
REPORTS_AT_ONCE = Bound("reports of one node's pods at once", 64, "reports", Above.WAITS)
REPORTS_PER_MINUTE = Bound(
    "reports of one node's pods for long", 120, "reports a minute", Above.WAITS
)
REPORTED_BYTES_AT_ONCE = Bound(
    "what reports of one node have written at once", 4 << 20, "bytes", Above.WAITS
)
REPORTED_BYTES_PER_MINUTE = Bound(
    "what reports of one node have written for long", 4 << 20, "bytes a minute", Above.WAITS
)

# Reports of ways to other nodes, to the controller

PATHS_BODY = Bound("body of one report of a node's paths", 256 << 10, "bytes", Above.REFUSED)
REPORTED_PAIRS = Bound("paths that the controller knows of one node", 64, "paths", Above.REFUSED)
REPORTED_SEGMENTS = Bound("segments in a report of paths", 64, "segments", Above.REFUSED)
REPORTED_NATS = Bound(
    "kinds of NAT, or rungs, in a report of paths", 16, "kinds or rungs", Above.REFUSED
)
REPORTED_WORDS = Bound("words of a report of paths", 400, "characters", Above.REFUSED)
REPORTED_FIGURE = Bound(
    "a count, or bytes a second, in a report of paths", 1 << 50, "of what is counted", Above.REFUSED
)
PATHS_AT_ONCE = Bound("reports of one node's paths at once", 20, "reports", Above.WAITS)
PATHS_PER_MINUTE = Bound(
    "reports of one node's paths for long", 40, "reports a minute", Above.WAITS
)

# Other requests to the controller

REQUESTS_AT_ONCE = Bound("requests of one node at once", 1_000, "requests", Above.WAITS)
REQUESTS_PER_MINUTE = Bound(
    "requests of one node for long", 1_200, "requests a minute", Above.WAITS
)
PUT_OFF_PER_S = Bound(
    "requests over these bounds that are answered, on one connection",
    2,
    "requests a second",
    Above.WAITS,
)
"""Each costs TLS and HTTP still."""
MEMBER_CONNECTIONS = Bound(
    "connections of one node to the controller", 8, "connections", Above.OLDEST_OUT
)
PUBLISHED_AT_ONCE = Bound("presences of one node at once", 20, "presences", Above.WAITS)
PUBLISHED_PER_MINUTE = Bound(
    "presences of one node for long", 30, "presences a minute", Above.WAITS
)
WATCHES_AT_ONCE = Bound("watches that one node begins at once", 20, "watches", Above.WAITS)
WATCHES_PER_MINUTE = Bound(
    "watches that one node begins for long", 30, "watches a minute", Above.WAITS
)
SHOWN_DOCUMENTS = Bound(
    "documents shown to a controller at once after a restore", 256, "documents", Above.REFUSED
)
SHOWN_AT_ONCE = Bound(
    "documents that one node shows at once, each KiB of a large one for one",
    4_096,
    "documents",
    Above.WAITS,
)
SHOWN_PER_MINUTE = Bound(
    "documents that one node shows for long", 12_288, "documents a minute", Above.WAITS
)
"""Those in its hellos, too: they are read before it is known who has signed them."""
HELLO_DOCUMENTS = Bound("documents in a node's hello", 8, "documents", Above.REFUSED)
SHOW_BODY = Bound("body of a node's hello, or of what it shows", 1 << 20, "bytes", Above.REFUSED)
PUBLISH_BODY = Bound("body with a node's presence", 8 << 10, "bytes", Above.REFUSED)
SMALL_BODY = Bound("body of a node's request for segments", 4 << 10, "bytes", Above.REFUSED)
SEGMENT_VERSIONS = Bound("IP versions in a request for segments", 8, "IP versions", Above.REFUSED)
NUMBER = Bound(
    "a revision, a generation or a sequence in a request to the controller, or in its answer",
    (1 << 63) - 1,
    "before it",
    Above.REFUSED,
)

# A relay

RELAY_ASKS = Bound(
    "messages of one node to a relay over TLS, at once", 500, "messages", Above.CLOSED
)
RELAY_ASKS_PER_S = Bound("... for long", 50, "messages a second", Above.CLOSED)
RELAY_TLS_NODES = Bound("nodes on a relay over TLS", 1_024, "nodes", Above.CLOSED)
RELAY_PAIRS = Bound(
    "pairs of a relay, by UDP or TLS, unless `relay_ports` says otherwise: each has two ports",
    1_000,
    "pairs",
    Above.REFUSED,
)
RELAY_PAIRS_OF_ONE = Bound(
    "... that one node has asked for, unless `relay_pairs_per_node` says otherwise",
    64,
    "pairs",
    Above.REFUSED,
)
"""A pair is all that a relay remembers of a node by UDP, beside where its last hello came from."""
RELAY_THROUGHPUTS = Bound(
    "nodes for which a relay counts what it hands on, where `relay_bytes_per_s` bounds that",
    4_096,
    "nodes",
    Above.OLDEST_OUT,
)
RELAY_TELLS = Bound(
    "times that a node is told by a relay of one that asks for it, at once",
    5,
    "times",
    Above.DROPPED,
)
"""It goes to wherever a hello came from, also where another's address was written on it."""
RELAY_TELLS_PER_S = Bound("... for long", 1, "times a second", Above.DROPPED)
NAT_OBSERVATIONS = Bound(
    "endpoints that say how they see a node from outside", 64, "endpoints", Above.OLDEST_OUT
)
ENDPOINTS_TOLD = Bound(
    "times that a node tells the cluster another endpoint of its tunnel, as others see it, at once",
    12,
    "times",
    Above.WAITS,
)
"""A member may see another one each time: all nodes hear of it, and take 30 changes a minute."""
ENDPOINTS_TOLD_PER_MINUTE = Bound("... for long", 6, "times a minute", Above.WAITS)

# A relay's streams (TLS), at both ends; and relays as a node sees them, which are members too

RELAY_PACKET = Bound(
    "a packet, or a word, on a connection to a relay", 9_216, "bytes", Above.CLOSED
)
"""Jumbo frames have 9,000 bytes and a little more."""
RELAY_TINY_PACKETS_PER_S = Bound(
    "packets on such a connection beyond one for each 64 bytes that are sent there",
    10_000,
    "packets a second",
    Above.WAITS,
)
"""A packet costs a relay the same, however small; of a tunnel the empty ones alone are smaller."""
RELAY_UNREAD = Bound(
    "packets that wait for who does not read such a connection", 256 << 10, "bytes", Above.DROPPED
)
"""7 ms at 300 Mbit/s."""
RELAY_UNREAD_WORDS = Bound("... all else that waits", 16 << 10, "bytes", Above.CLOSED)
RELAY_SILENT_S = Bound(
    "time that a node on a relay over TLS says nothing", 45, "seconds", Above.CLOSED
)
"""Three pings that did not come."""
RELAY_TOLD_ENDS = Bound(
    "ends of pairs for which a relay counts how often it tells of them",
    1 << 16,
    "ends",
    Above.OLDEST_OUT,
)
RELAY_ENDS = Bound(
    "pairs of which one relay says that others have asked for them", 1_024, "pairs", Above.DROPPED
)
RELAY_PLACES = Bound("endpoints of a relay that are asked", 6, "endpoints", Above.CUT)
RELAY_TLS_PLACES = Bound("... that are tried by TCP", 8, "endpoints", Above.CUT)
RELAY_MOVES = Bound(
    "times that a relay which does not answer names other endpoints, which are asked at once",
    4,
    "times",
    Above.WAITS,
)
RATED_NODES = Bound(
    "nodes for which the controller counts how much they ask", 1 << 16, "nodes", Above.OLDEST_OUT
)
BOOT_IDS = Bound("former boots of a node that are remembered", 8, "boots", Above.OLDEST_OUT)
"""One of them that comes again is another machine with its key."""
PACKET_SOURCES = Bound(
    "addresses of a node that its packets, and its tunnel's, may come from",
    16,
    "addresses",
    Above.CUT,
)
"""It says them itself."""
