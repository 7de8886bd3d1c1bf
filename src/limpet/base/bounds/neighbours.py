"""What a node takes of what is said between nodes: by members, and by whoever is on the way."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

DATAGRAM_BODY = Bound("body of a datagram", 60_000, "bytes", Above.DROPPED)
"""So that a datagram is within what UDP carries, with room for headers of tunnels."""
SIGNATURES_AT_ONCE = Bound(
    "datagrams of one address whose signature is checked at once", 800, "datagrams", Above.DROPPED
)
"""A port that members write from counts by itself, and all others of the address together."""
SIGNATURES_PER_S = Bound(
    "datagrams of one address whose signature is checked for long",
    400,
    "datagrams a second",
    Above.DROPPED,
)
MEMBERS_SIGNATURES = Bound(
    "... of all addresses and ports together that members write from, at once",
    4_000,
    "datagrams",
    Above.DROPPED,
)
"""0.1 ms each."""
MEMBERS_SIGNATURES_PER_S = Bound("... for long", 2_000, "datagrams a second", Above.DROPPED)
STRANGERS_SIGNATURES = Bound(
    "... of all strangers together, and of those at members' addresses, at once",
    400,
    "datagrams",
    Above.DROPPED,
)
STRANGERS_SIGNATURES_PER_S = Bound("... for long", 200, "datagrams a second", Above.DROPPED)
UNPROVEN_ADDRESS = Bound(
    "probes to an address where nobody has answered, whoever names it, at once",
    20,
    "probes",
    Above.DROPPED,
)
UNPROVEN_ADDRESS_PER_S = Bound("... for some minutes", 2, "probes a second", Above.DROPPED)
UNPROVEN_ADDRESS_LONG = Bound("... and then in all", 120, "probes", Above.DROPPED)
UNPROVEN_ADDRESS_PER_MINUTE = Bound("... for long", 2, "probes a minute", Above.DROPPED)
UNPROVEN_PEER = Bound(
    "probes to all places together that one member names, at once", 48, "probes", Above.DROPPED
)
UNPROVEN_PEER_PER_S = Bound("... for some minutes", 4, "probes a second", Above.DROPPED)
UNPROVEN_PEER_LONG = Bound("... and then in all", 480, "probes", Above.DROPPED)
UNPROVEN_PEER_PER_MINUTE = Bound("... for long", 12, "probes a minute", Above.DROPPED)
UNPROVEN_ANSWERS = Bound(
    "probes in answer to those that a member sends from where it has proven nothing, at once",
    3,
    "probes",
    Above.DROPPED,
)
PUSHED_DOCUMENTS = Bound("documents in one datagram", 128, "documents", Above.DROPPED)
LISTED_ITEMS = Bound("items of a listing in one datagram", 4_096, "items", Above.DROPPED)
WANTED_MARKS = Bound("documents asked for in one datagram", 128, "documents", Above.DROPPED)
"""More than a node of ours puts into a datagram, less than one could hold."""
TOLD_AT_ONCE = Bound(
    "documents that one member tells at once, each KiB of a large one for one",
    2_000,
    "documents",
    Above.WAITS,
)
TOLD_PER_S = Bound(
    "documents that one member tells for long", 1_000, "documents a second", Above.WAITS
)
STRANGERS_TOLD_AT_ONCE = Bound(
    "documents that all who are no members tell at once", 400, "documents", Above.WAITS
)
STRANGERS_TOLD_PER_S = Bound(
    "documents that all who are no members tell for long", 100, "documents a second", Above.WAITS
)
CHANGES_AT_ONCE = Bound(
    "changes of what one node says of itself, told by neighbours or by an API server, at once",
    20,
    "changes",
    Above.WAITS,
)
CHANGES_PER_MINUTE = Bound(
    "changes of what one node says of itself, told by neighbours or by an API server, for long",
    30,
    "changes a minute",
    Above.WAITS,
)
POD_QUESTIONS_AT_ONCE = Bound(
    "questions of one member which pods a node has, at once", 20, "questions", Above.DROPPED
)
POD_QUESTIONS_PER_S = Bound(
    "questions of one member which pods a node has, for long",
    5,
    "questions a second",
    Above.DROPPED,
)
FOUND_PODS = Bound("pods in one answer to such a question", 8, "pods", Above.DROPPED)
"""There is one of a name in a namespace; who asks for the name alone may mean several."""
HEARD_MEMBERS = Bound(
    "members that a node keeps in mind as heard", 1_024, "members", Above.OLDEST_OUT
)
POD_ASKERS = Bound(
    "members for which a node counts how often they ask for pods",
    1_024,
    "members",
    Above.OLDEST_OUT,
)
TUNNEL_RESETS = Bound(
    "members for which a node counts how often they want its tunnel anew",
    4_096,
    "members",
    Above.OLDEST_OUT,
)
SUSPICIONS_AT_ONCE = Bound(
    "comparisons with one member since it says that it knows more, at once",
    3,
    "comparisons",
    Above.WAITS,
)
SUSPICIONS_PER_MINUTE = Bound("... for long", 20, "comparisons a minute", Above.WAITS)
"""It has its turn when nobody says so, too: every few seconds with one of all."""
SUSPECTED_MEMBERS = Bound(
    "members for which a node counts how often they say so", 1_024, "members", Above.OLDEST_OUT
)
COMPARED_AT_ONCE = Bound(
    "documents that are looked at for one member that compares, at once",
    65_536,
    "documents",
    Above.DROPPED,
)
"""Who knows nothing yet has all of them compared."""
COMPARED_PER_S = Bound("... for long", 8_192, "documents a second", Above.DROPPED)
"""Some 3 us each."""
COMPARED_MEMBERS = Bound(
    "members for which a node counts these", 1_024, "members", Above.OLDEST_OUT
)
REFUSED_DOCUMENTS = Bound(
    "documents that this version cannot read, and mostly does not ask for again",
    16_384,
    "documents",
    Above.OLDEST_OUT,
)
"""As many as a thousand nodes of a later version have, with their pods."""
HEARD_AT = Bound(
    "places that one member's probes come from in clear, and may be answered at",
    8,
    "places",
    Above.OLDEST_OUT,
)
TUNNEL_HEARD_AT = Bound(
    "places that one member's tunnel writes from, where its NAT may let us in",
    3,
    "places",
    Above.OLDEST_OUT,
)
UNPROVEN_KEPT = Bound(
    "addresses, and members, for which probes are counted", 4_096, "of each", Above.OLDEST_OUT
)
PROVEN_KEPT = Bound(
    "places where members have answered, and with whom, that are remembered",
    16_384,
    "places",
    Above.OLDEST_OUT,
)
AMPLIFICATION = Bound(
    "bytes to a place that has proven nothing, for each that came from there",
    3,
    "bytes",
    Above.DROPPED,
)
"""Source: RFC 9000 section 8.1."""
REFUSALS_AT_ONCE = Bound(
    "answers to nodes that are no members any more, at once", 10, "answers", Above.DROPPED
)
REFUSALS_PER_S = Bound("... for long", 10, "answers a second", Above.DROPPED)
REFUSALS_OF_ONE_PER_MINUTE = Bound("... to one of them", 30, "answers a minute", Above.DROPPED)
HEARD_CREDIT = Bound(
    "what may be sent to a place that has proven nothing, for what came from there",
    8_192,
    "bytes",
    Above.CUT,
)
"""Three times as much as came. Source: RFC 9000 section 8.1."""
CONTACT_PLACES = Bound(
    "addresses of a member that are written to where none has answered", 3, "addresses", Above.CUT
)
PROBED_ADDRESSES = Bound("... that are probed", 8, "addresses", Above.CUT)
PROBED_TOLD = Bound(
    "endpoints of its tunnel that it says, and are probed", 6, "endpoints", Above.CUT
)
PROBED_ENDPOINTS = Bound("... and all others together", 12, "endpoints", Above.CUT)
HEARD_SOURCES = Bound(
    "addresses, and ports of them, whose signatures are counted", 8_192, "of both", Above.OLDEST_OUT
)
REPLAYED = Bound(
    "datagrams that are known if they come again", 4_096, "datagrams", Above.OLDEST_OUT
)
TELLERS = Bound(
    "members for which a node counts how many documents they tell",
    1_024,
    "members",
    Above.OLDEST_OUT,
)
CHANGERS = Bound(
    "nodes for which it counts how often they change what they say of themselves",
    8_192,
    "nodes",
    Above.OLDEST_OUT,
)
