"""What is taken from those who have signed in to the page (`limpet ui`)."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

PAGE_SESSIONS = Bound("sessions of the page", 256, "sessions", Above.OLDEST_OUT)
PAGE_STREAMS = Bound("streams of what changes, of one session", 8, "streams", Above.REFUSED)
"""One for each tab."""
PAGE_CONNECTIONS = Bound("connections of one session", 32, "connections", Above.OLDEST_OUT)
"""A browser has six for each tab's host, and one for each stream."""
PAGE_ASKED = Bound(
    "questions of the page, for all who look, to the agent or the controller at once",
    32,
    "questions",
    Above.WAITS,
)
"""Each takes a thread."""
PAGE_BODY = Bound("a form of the page", 16 << 10, "bytes", Above.REFUSED)
PAGE_QUERY = Bound("what is looked for on the page", 128, "characters", Above.CUT)
PAGE_IDLE_S = Bound("time that a session is not used", 43_200, "seconds", Above.REFUSED)
PAGE_LONGEST_S = Bound("... since it was signed in", 604_800, "seconds", Above.REFUSED)
