"""What is taken from those who have proven nothing: they know an address, and no more."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

# The controller's API. All of it twice: for addresses that nodes have come from lately, and for
# all others.
API_WAITING = Bound(
    "connections to the controller that nobody has looked at yet",
    1024,
    "connections",
    Above.OLDEST_OUT,
)
API_WAITING_OF_ONE = Bound("... from one address", 512, "connections", Above.OLDEST_OUT)
"""A site of 250 nodes behind one NAT connects twice for each of them."""
API_INSIDE = Bound(
    "connections to the controller without a node's certificate", 128, "connections", Above.WAITS
)
API_INSIDE_OF_ONE = Bound("... from one address", 32, "connections", Above.WAITS)
API_HANDSHAKES = Bound(
    "TLS handshakes with the controller from addresses that no node has come from lately, at once",
    200,
    "handshakes",
    Above.WAITS,
)
"""One takes 1 to 2 ms of the processor."""
API_HANDSHAKES_PER_S = Bound("... for long", 100, "handshakes a second", Above.WAITS)
API_HANDSHAKES_OF_ONE = Bound("... from one address at once", 100, "handshakes", Above.WAITS)
API_HANDSHAKES_OF_ONE_PER_S = Bound("... for long", 20, "handshakes a second", Above.WAITS)
API_KNOWN_HANDSHAKES = Bound(
    "... from addresses that nodes have come from lately, at once", 600, "handshakes", Above.WAITS
)
"""Sites with hundreds of nodes behind one NAT, all of which come back at once."""
API_KNOWN_HANDSHAKES_PER_S = Bound("... for long", 300, "handshakes a second", Above.WAITS)
API_KNOWN_HANDSHAKES_OF_ONE = Bound("... from one of them at once", 400, "handshakes", Above.WAITS)
API_KNOWN_HANDSHAKES_OF_ONE_PER_S = Bound("... for long", 200, "handshakes a second", Above.WAITS)
API_FIRST_S = Bound(
    "time for a connection to send something, and then for its request's head",
    10,
    "seconds",
    Above.CLOSED,
)
API_TURN_S = Bound("... that it waits for its turn", 30, "seconds", Above.CLOSED)
"""An agent gives up after ten; a busy controller's seconds are longer here."""
API_HURRIED_S = Bound("... where others wait for its place", 3, "seconds", Above.CLOSED)
"""Five round trips by satellite."""
API_LONGEST_S = Bound(
    "time of a request without a node's certificate, answer included", 60, "seconds", Above.CLOSED
)
API_BODY_S = Bound("... for its body", 10, "seconds", Above.REFUSED)
API_HEAD = Bound(
    "the head of a request without a node's certificate", 16 << 10, "bytes", Above.CLOSED
)
JOIN_BODY = Bound("the body of such a request", 16 << 10, "bytes", Above.REFUSED)
"""Room for a join: a token of a pod's account has some 1,500 bytes, a name 253."""

# Figures for monitors (`metrics_listen` of agents, of the names' process and of the controller),
# and what load balancers ask (healthCheckNodePort), all in clear.
FIGURES_CONNECTIONS = Bound("connections to a port of figures", 32, "connections", Above.OLDEST_OUT)
FIGURES_CONNECTIONS_OF_ONE = Bound("... from one address", 8, "connections", Above.OLDEST_OUT)
FIGURES_ASKED = Bound(
    "connections to such a port of a controller that are looked at, at once",
    64,
    "connections",
    Above.WAITS,
)
FIGURES_ASKED_PER_S = Bound("... for long", 20, "connections a second", Above.WAITS)
FIGURES_ASKED_OF_ONE = Bound("... from one address at once", 32, "connections", Above.WAITS)
FIGURES_ASKED_OF_ONE_PER_S = Bound("... for long", 10, "connections a second", Above.WAITS)
FIGURES_S = Bound("time for a request to such a port, answer included", 10, "seconds", Above.CLOSED)
FIGURES_REQUEST = Bound("a request to such a port", 8 << 10, "bytes", Above.REFUSED)
HEALTH_CONNECTIONS = Bound(
    "connections to all healthCheckNodePorts of a node", 64, "connections", Above.OLDEST_OUT
)
HEALTH_CONNECTIONS_OF_ONE = Bound("... from one address", 16, "connections", Above.OLDEST_OUT)
HEALTH_PORTS = Bound("healthCheckNodePorts of a node", 1024, "ports", Above.NOT_KEPT)
HEALTH_S = Bound(
    "time for a request to a healthCheckNodePort, answer included", 5, "seconds", Above.CLOSED
)
HEALTH_REQUEST = Bound("a request to a healthCheckNodePort", 8 << 10, "bytes", Above.CLOSED)

# A relay's TLS port.
RELAY_GREETING = Bound(
    "connections to a relay that no node has proven itself on",
    128,
    "connections",
    Above.OLDEST_OUT,
)
"""And as many from addresses that nodes have come from lately."""
RELAY_GREETING_OF_ONE = Bound("... from one address", 32, "connections", Above.OLDEST_OUT)
RELAY_HANDSHAKES = Bound(
    "TLS handshakes with a relay from addresses that no node has come from lately, at once",
    400,
    "handshakes",
    Above.CLOSED,
)
RELAY_HANDSHAKES_PER_S = Bound("... for long", 200, "handshakes a second", Above.CLOSED)
RELAY_HANDSHAKES_OF_ONE = Bound("... from one address at once", 100, "handshakes", Above.CLOSED)
"""It may be a whole site's."""
RELAY_HANDSHAKES_OF_ONE_PER_S = Bound("... for long", 20, "handshakes a second", Above.CLOSED)
RELAY_GREETING_S = Bound(
    "time for a node to prove itself to a relay, and to say something", 5, "seconds", Above.CLOSED
)

# `limpet netcheck` of machines that have joined nothing, at controllers and relays: each answer is
# shorter than its question.
REFLECTIONS = Bound(
    "questions where a datagram came from, at once", 1000, "questions", Above.DROPPED
)
REFLECTIONS_PER_S = Bound("... for long", 200, "questions a second", Above.DROPPED)
REFLECTIONS_OF_ONE = Bound("... of one address at once", 200, "questions", Above.DROPPED)
"""IPv6: of one /64. A check asks some 60 times."""
REFLECTIONS_OF_ONE_PER_S = Bound("... for long", 10, "questions a second", Above.DROPPED)

NETCHECK_ANSWER = Bound(
    "what a controller answers `limpet netcheck`, whoever it is", 16 << 10, "bytes", Above.CUT
)

NETCHECK_QUESTIONS = Bound(
    "questions that came to `limpet netcheck` itself, as its own come back by a NAT",
    1024,
    "questions",
    Above.OLDEST_OUT,
)

# The names' process, which pods ask: they may run anybody's program.
DNS_CONNECTIONS = Bound(
    "TCP connections to the names' process", 256, "connections", Above.OLDEST_OUT
)
DNS_CONNECTIONS_OF_ONE = Bound("... from one address", 32, "connections", Above.OLDEST_OUT)
DNS_QUESTION_S = Bound(
    "time on such a connection until the next whole question", 10, "seconds", Above.CLOSED
)
DNS_QUESTION = Bound("a question for names", 4 << 10, "bytes", Above.CLOSED)
"""One that comes by UDP is cut there, and then it is none."""
DNS_UNSENT = Bound(
    "answers on a TCP connection that the client does not take", 256 << 10, "bytes", Above.CLOSED
)
"""Four of the largest."""
DNS_WAITING = Bound(
    "questions by UDP that wait while others are answered", 4096, "questions", Above.DROPPED
)
DNS_WAITING_OF_ONE = Bound("... of one address", 1024, "questions", Above.DROPPED)
DNS_CLIENTS = Bound(
    "clients by UDP of whom it is kept whether they are on this node",
    4096,
    "addresses",
    Above.OLDEST_OUT,
)
DNS_READY = Bound(
    "answers for names of the cluster that are kept as bytes, by question",
    8192,
    "answers",
    Above.OLDEST_OUT,
)
"""All of them do: they are soon there again."""
DNS_READY_BYTES = Bound(
    "... all of them together, in all orders of their records", 8 << 20, "bytes", Above.OLDEST_OUT
)
DNS_READY_ANSWER = Bound("... one of them", 64 << 10, "bytes", Above.NOT_KEPT)
"""Sixteen of the longest by UDP fit. By TCP a pod may ask for all of a thousand endpoints, each
time with other capitals."""
DNS_READY_QUESTION = Bound("... the question of one of them", 300, "bytes", Above.NOT_KEPT)
DNS_ADDRESSES = Bound(
    "addresses in an answer for a name of the cluster", 4096, "addresses", Above.CUT
)
"""The nearest. All of a Service with 100,000 endpoints no message has room for."""
DNS_PORTS = Bound("... ports, each with the name that it is at", 512, "ports", Above.CUT)
DNS_NAMES = Bound("... names of an address", 512, "names", Above.CUT)
DNS_FOUND = Bound(
    "names of the cluster of which it is kept what there is, whatever capitals they come in",
    2048,
    "names",
    Above.OLDEST_OUT,
)
"""All of them make room, as for answers."""
DNS_FOUND_RECORDS = Bound("... records of all of them", 32_768, "records", Above.OLDEST_OUT)
DNS_FORWARDED = Bound(
    "questions for other names that are under way", 2048, "questions", Above.REFUSED
)
DNS_FORWARDED_OF_ONE = Bound(
    "... that one address was the first to ask", 512, "questions", Above.REFUSED
)
"""Who asks for thousands of names leaves room for others."""
DNS_ASKERS = Bound("... who wait for one of them", 256, "questions", Above.REFUSED)

# The tunnel's port, where IPsec is a node's tunnel: everybody may begin a key exchange.
IKE_UNPROVEN = Bound(
    "key exchanges that nobody has come to the end of, before an address has to be proven",
    1000,
    "exchanges",
    Above.REFUSED,
)
"""By a cookie, as RFC 7296 section 2.6 has it. Many nodes are behind one address."""
IKE_HALF_OPEN_OF_ONE = Bound("... of one address", 1000, "exchanges", Above.DROPPED)
IKE_HALF_OPEN = Bound("... of all", 4096, "exchanges", Above.DROPPED)
IKE_HALF_OPEN_S = Bound("time until such a one is forgotten", 30, "seconds", Above.CLOSED)
"""A peer gives up after 16 s of retransmissions, each of which may be the first to arrive."""

# What a person was sent, and gives to a command.
JOIN_TOKEN = Bound("a join token in a file or on standard input", 4 << 10, "bytes", Above.REFUSED)

# The page (`limpet ui`). Connections and heads are those of the controller's API.
PAGE_SIGN_INS = Bound(
    "wrong tokens for the page from one address, at once", 10, "tokens", Above.REFUSED
)
PAGE_SIGN_INS_PER_MINUTE = Bound("... for long", 10, "tokens a minute", Above.REFUSED)

# Of so many it is counted how often each of them comes; all of them together have a rate, too.
API_SOURCES = Bound(
    "addresses for which the controller counts TLS handshakes, and that it knows nodes by",
    4096,
    "addresses",
    Above.OLDEST_OUT,
)
RELAY_SOURCES = Bound("... a relay", 4096, "addresses", Above.OLDEST_OUT)
REFLECTED_SOURCES = Bound(
    "addresses for which it is counted how often they ask where a datagram came from",
    4096,
    "addresses",
    Above.OLDEST_OUT,
)
PAGE_SOURCES = Bound(
    "addresses for which wrong tokens for the page are counted",
    1024,
    "addresses",
    Above.OLDEST_OUT,
)

# Whoever reaches the controller's port, where the API server judges tokens.
ACCOUNT_TOKEN = Bound("a token of an account of Kubernetes", 16 << 10, "characters", Above.REFUSED)
REVIEWS = Bound(
    "tokens that the API server is asked about for administrators, at once: each that was good "
    "lately, others from an address that one came from, and all others together",
    50,
    "tokens",
    Above.REFUSED,
)
REVIEWS_PER_S = Bound("... for long", 5, "tokens a second", Above.REFUSED)
REVIEWS_OF_ONE = Bound("... from one of the others at once", 10, "tokens", Above.REFUSED)
REVIEWS_OF_ONE_PER_S = Bound("... for long", 1, "tokens a second", Above.REFUSED)
HEADERS = Bound(
    "headers of a request to the controller, or to the page", 64, "headers", Above.REFUSED
)
ACCOUNT_REVIEWS = Bound(
    "tokens of agents' pods that the API server is asked about, as of administrators, at once",
    500,
    "tokens",
    Above.REFUSED,
)
ACCOUNT_REVIEWS_PER_S = Bound("... for long", 50, "tokens a second", Above.REFUSED)
"""As of administrators; a site has hundreds of nodes behind one address."""
ACCOUNT_REVIEWS_OF_ONE = Bound("... from one of the others at once", 100, "tokens", Above.REFUSED)
ACCOUNT_REVIEWS_OF_ONE_PER_S = Bound("... for long", 10, "tokens a second", Above.REFUSED)
REVIEW_SOURCES = Bound(
    "addresses for which it is counted how many tokens the API server is asked about",
    1024,
    "addresses",
    Above.OLDEST_OUT,
)
