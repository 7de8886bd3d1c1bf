"""What is taken from those who have signed in to the page (`limpet ui`)."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

PAGE_SESSIONS = Bound("sessions of the page", 256, "sessions", Above.OLDEST_OUT)
PAGE_SESSIONS_OF_ONE = Bound("... of one token", 32, "sessions", Above.OLDEST_OUT)
"""And of all links together. Colleagues may share a token."""
PAGE_STREAMS = Bound("streams of what changes, of one session", 8, "streams", Above.REFUSED)
"""One for each tab."""
PAGE_UNTAKEN_S = Bound(
    "time in which a browser takes what has changed", 10, "seconds", Above.CLOSED
)
"""A stream that waits for it holds a whole picture: a new one comes four times a second."""
PAGE_CONNECTIONS = Bound("connections of one session", 32, "connections", Above.OLDEST_OUT)
"""A browser has six for each tab's host, and one for each stream."""
PAGE_CONNECTIONS_OF_ONE = Bound("... of one token", 64, "connections", Above.OLDEST_OUT)
PAGE_MADE = Bound("pages of one token that are made at once", 1, "pages", Above.WAITS)
PAGE_ASKED = Bound(
    "questions of the page, for all who look, to the agent or the controller at once",
    32,
    "questions",
    Above.WAITS,
)
"""Each takes a thread."""
PAGE_REVIEWED_PER_S = Bound(
    "questions of one token that a page passes on by the API server for long",
    2,
    "questions a second",
    Above.WAITS,
)
"""The API server is asked about each who may, and all share what a page is asked about
(`strangers.REVIEWS_PER_S`). The picture that all look at takes as many."""
PAGE_BODY = Bound("a form of the page", 16 << 10, "bytes", Above.REFUSED)
PAGE_QUERY = Bound("what is looked for on the page", 128, "characters", Above.CUT)
PAGE_IDLE_S = Bound("time that a session is not used", 43_200, "seconds", Above.REFUSED)
PAGE_LONGEST_S = Bound("... since it was signed in", 604_800, "seconds", Above.REFUSED)
