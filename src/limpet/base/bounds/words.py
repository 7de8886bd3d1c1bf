"""Names that others chose, and what stands of their words in a log and on a terminal."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

NAME = Bound("name of a pod, a namespace, a container or a node", 253, "characters", Above.REFUSED)
LABEL = Bound("name, or value, of a label", 63, "characters", Above.REFUSED)
"""Source: k8s.io/apimachinery/pkg/util/validation."""
MARKS = Bound("marks on one letter, as accents are", 3, "marks", Above.CUT)
"""Each further one is written as its number: hundreds would stand over the lines around."""
LOG_VALUE = Bound("one value in a line of a log", 1000, "characters", Above.CUT)
LOG_TRACEBACK = Bound("a traceback in a line of a log", 16000, "characters", Above.CUT)
LOG_FIELDS = Bound("values in a line of a log", 40, "values", Above.CUT)
LOG_LINES = Bound("lines of one kind in a log, at once", 1000, "lines", Above.DROPPED)
LOG_LINES_PER_S = Bound("... for long", 20, "lines a second", Above.DROPPED)
LOG_REFUSALS = Bound("lines of one kind about what others did, at once", 20, "lines", Above.DROPPED)
LOG_REFUSALS_PER_MINUTE = Bound("... for long", 12, "lines a minute", Above.DROPPED)
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
SERVICE_PORTS = Bound("ports of one Service, or of one EndpointSlice", 1000, "ports", Above.CUT)
"""Each is looked for among those of all its slices."""
SLICE_ENDPOINTS = Bound("endpoints of one EndpointSlice", 1000, "endpoints", Above.CUT)
"""As an API server has it."""
TRACE_STEPS = Bound(
    "steps of packets through a node's rules that `limpet trace` looks at",
    10_000,
    "steps",
    Above.NOT_KEPT,
)
"""A packet takes some 20: more say nothing new, and it waits for none."""
LOG_KINDS = Bound(
    "kinds of lines, and members, that are counted by themselves", 1000, "of them", Above.OLDEST_OUT
)
PROGRAM_LOG = Bound(
    "what a tunnel's program has written, once another is begun", 256 << 10, "bytes", Above.CUT
)
"""All of it is left out then."""
EVENTS = Bound("events that a node or a controller writes down at once", 240, "events", Above.WAITS)
EVENTS_PER_HOUR = Bound("... for long", 120, "events an hour", Above.WAITS)
EVENTS_OF_ONE = Bound("... about one node or pair, of one kind, at once", 8, "events", Above.WAITS)
EVENTS_OF_ONE_PER_HOUR = Bound("... for long", 6, "events an hour", Above.WAITS)
EVENT_SUBJECTS = Bound(
    "nodes and pairs of which events are held back", 4_096, "of them", Above.OLDEST_OUT
)
EVENTS_WAITING = Bound(
    "events that wait since they cannot be written", 4_096, "events", Above.OLDEST_OUT
)
KUBE_EVENTS = Bound(
    "Events in Kubernetes that are known by their words", 1_024, "Events", Above.DROPPED
)
KUBE_EVENTS_OF_ONE = Bound("... about one object, at once", 20, "Events", Above.DROPPED)
KUBE_EVENTS_OF_ONE_PER_MINUTE = Bound("... for long", 1, "Events a minute", Above.DROPPED)
