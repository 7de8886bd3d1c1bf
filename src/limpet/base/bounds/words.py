"""Names that others chose, and what stands of their words in a log and on a terminal."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

NAME = Bound("name of a pod, a namespace, a container or a node", 253, "characters", Above.REFUSED)
LOG_VALUE = Bound("one value in a line of a log", 1000, "characters", Above.CUT)
LOG_TRACEBACK = Bound("a traceback in a line of a log", 16000, "characters", Above.CUT)
LOG_FIELDS = Bound("values in a line of a log", 40, "values", Above.CUT)
LOG_LINES = Bound("lines of one kind in a log, at once", 1000, "lines", Above.DROPPED)
"""And 20 a second for long."""
LOG_REFUSALS = Bound("lines of one kind about what others did, at once", 20, "lines", Above.DROPPED)
"""And one in five seconds for long."""
CELL = Bound("a cell of a table on a terminal", 4000, "characters", Above.CUT)
LINE = Bound("a line on a terminal", 65536, "characters", Above.CUT)
SNAPSHOT = Bound("what a node has kept of its cluster", 1 << 30, "bytes", Above.REFUSED)
"""A hundred times what ten thousand nodes take."""
FILE = Bound(
    "a file that others write, such as a runtime or a person", 16 << 20, "bytes", Above.REFUSED
)
LEFT_OUT = Bound(
    "parts of one Service or EndpointSlice that nobody can use, in words", 8, "parts", Above.CUT
)
"""And how many more there are."""
LEFT_OUT_OBJECTS = Bound("such objects in an answer of the agent", 50, "objects", Above.CUT)
"""And of how many there is such a thing."""
UNREAD = Bound(
    "Services and EndpointSlices that cannot be read at all, in words",
    200,
    "objects",
    Above.DROPPED,
)
SLICE_ENDPOINTS = Bound("endpoints of one EndpointSlice", 1000, "endpoints", Above.CUT)
"""As an API server has it."""
