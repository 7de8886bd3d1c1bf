"""What is taken of those who are asked: controllers, API servers, name servers, gateways.

They may be somebody else, too: a gateway proves nothing, and a name server is answered for by
whoever guesses well.
"""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

# The gateway, and machines that are asked for a sign of life.

GATEWAY_DATAGRAMS = Bound(
    "datagrams that are looked at for a gateway's answer to one question",
    128,
    "datagrams",
    Above.DROPPED,
)
"""Everybody on the link may answer a search, and write the gateway's address on it."""
GATEWAY_MEMORY = Bound(
    "memory of the process that reads what a gateway says by UPnP", 256 << 20, "bytes", Above.CLOSED
)
GATEWAY_TALK_S = Bound("time that a gateway has to say all of it", 15, "seconds", Above.CLOSED)
ECHOES = Bound(
    "packets of a machine that are looked at for its answer to one ping",
    256,
    "packets",
    Above.DROPPED,
)
GATEWAY_LEASE_S = Bound(
    "time for which a gateway says that it forwards a port", 3600, "seconds", Above.CUT
)
"""As long as it was asked for. After half of it it is asked again: it may have forgotten."""

# Name servers that the names' process asks.

DNS_UPSTREAMS = Bound("name servers of a resolv.conf", 6, "name servers", Above.CUT)
DNS_TTL_S = Bound(
    "time that an answer of a name server holds, as it says", 86_400, "seconds", Above.CUT
)
DNS_NO_TTL_S = Bound("... where it says that there is nothing", 900, "seconds", Above.CUT)
"""A name that has come to be is found by then. Source: RFC 2308 section 5 allows three hours."""
DNS_GUESSES = Bound(
    "answers to one question that have another number, or are to another question",
    16,
    "answers",
    Above.DROPPED,
)
"""Somebody guesses numbers: the question is asked by TCP then, where nobody can."""
DNS_RECORDS = Bound("records of an answer of a name server", 1024, "records", Above.CUT)
"""Those of the last section go first. Each is looked at, and again whenever it is told."""
DNS_BEHIND_ALIAS = Bound(
    "what a name server says of where an alias of the cluster leads to, as a whole message",
    2048,
    "bytes",
    Above.CUT,
)
"""More than fits into any answer by UDP. It is read record by record, at each question."""
DNS_CACHE = Bound("answers of name servers that are remembered", 8 << 20, "bytes", Above.OLDEST_OUT)

# Controllers and API servers, by HTTP.

HTTP_HEAD = Bound("the head of an answer by HTTP", 16 << 10, "bytes", Above.CLOSED)
HTTP_ANSWER = Bound("an answer by HTTP", 4 << 20, "bytes", Above.CLOSED)
"""The pods of a whole machine take one mebibyte."""
CACHED_LIST = Bound("... of a cache on this machine, to a list", 64 << 20, "bytes", Above.CLOSED)
"""It comes whole: 5,000 objects of four kilobytes, thrice."""
WATCH_LINE = Bound("a line of an API server's watch", 4 << 20, "bytes", Above.CLOSED)
"""etcd keeps 1.5 MiB of an object."""
FEED_LINE = Bound("a line of a controller's watch", 1 << 20, "bytes", Above.CLOSED)
"""An entry holds at most two documents of 64 KiB, in base64."""
EXEC_MESSAGE = Bound(
    "one message of a command that runs in a pod for a person", 1 << 20, "bytes", Above.CLOSED
)
"""Kubelets read 32 KiB at a time."""
NAMED_ADDRESSES = Bound("addresses of a server's name that are tried", 16, "addresses", Above.CUT)
REPLACED_PODS = Bound(
    "pods of the node that a machine replaces, as its controller tells them",
    4096,
    "pods",
    Above.REFUSED,
)
"""As the controller keeps them of one node."""
REPLACED_BYTES = Bound("... all answers with them", 16 << 20, "bytes", Above.REFUSED)
RETRY_AFTER_S = Bound(
    "time after which a server wants to be asked again", 3600, "seconds", Above.CUT
)
REFUSAL_WORDS = Bound("an API server's words for a refusal", 1000, "characters", Above.CUT)
UNREAD_CAUSE = Bound(
    "why a Service or an EndpointSlice cannot be read, in words", 300, "characters", Above.CUT
)
LEFT_OUT_VALUE = Bound(
    "a value of an object that nobody can use, in words", 60, "characters", Above.CUT
)
API_TOKEN = Bound("a token for an API server, in a file", 64 << 10, "bytes", Above.REFUSED)
API_CERTIFICATES = Bound(
    "certificates of an API server's authority, in a file", 1 << 20, "bytes", Above.REFUSED
)
KUBECONFIG = Bound("a kubeconfig", 1 << 20, "bytes", Above.REFUSED)
CONTROLLER_WAIT_S = Bound(
    "time after which a controller wants to be shown more documents", 60, "seconds", Above.CUT
)
EARLY_DOCUMENTS = Bound(
    "documents of an API server that came before what they stand under",
    1024,
    "documents",
    Above.NOT_KEPT,
)
"""All of their kind is listed again when that has come."""
UNUSABLE_OBJECTS = Bound(
    "objects of an API server that no node can use, in words", 1024, "objects", Above.NOT_KEPT
)
DELETED_NODES = Bound(
    "Nodes that an API server has deleted, in a controller's mind", 4_096, "Nodes", Above.OLDEST_OUT
)
"""A cluster that makes and deletes machines all day has new names each time."""
OWN_ENDPOINTS = Bound("endpoints of this node's tunnel that it tells", 8, "endpoints", Above.CUT)
"""Others say how they see it, and gateways what they forward."""
