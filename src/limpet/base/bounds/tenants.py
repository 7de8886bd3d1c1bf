"""What is taken of those who create pods, or write other objects at the API server, each in
namespaces of their own.

A node keeps what concerns the whole cluster, so that a tenant whom no ResourceQuota holds would
fill every node: each namespace has a share, and all together have a bound.
"""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

ALLOWED_ADDRESSES = Bound(
    "what a pod asks to send from beside its own addresses", 64, "prefixes", Above.REFUSED
)
ALLOWED_MACS = Bound("what a pod asks to send from beside its own MAC", 16, "MACs", Above.REFUSED)
PROBER_ANSWER = Bound(
    "what a pod of `limpet connectivity` tells, unpacked", 1 << 20, "bytes", Above.REFUSED
)
DNS_ALIASES = Bound(
    "Services that lead to each other by name, one after the other", 8, "Services", Above.REFUSED
)

# By a container runtime, which hands on what the pod's creator and the network's file say.

CNI_REQUEST = Bound("a request of a container runtime", 4 << 20, "bytes", Above.CLOSED)
CNI_STDIN = Bound("... the network's configuration in it", 1 << 20, "bytes", Above.CLOSED)
CNI_NAME = Bound("... the name of the network", 255, "characters", Above.REFUSED)
"""A file has it."""
CNI_LIST = Bound("... a list in it, such as its routes", 32_768, "elements", Above.REFUSED)
CNI_NETWORKS = Bound("networks for which addresses are recorded", 256, "networks", Above.REFUSED)
"""Each has a file open, and what is in it in memory."""
CNI_CONNECTIONS = Bound(
    "connections to the agent's socket that are served at once", 1024, "connections", Above.WAITS
)
POD_LISTED = Bound(
    "links, addresses, or routes, of a pod that are listed to check it",
    4_096,
    "of them",
    Above.REFUSED,
)
"""Who has rights in its own namespace may make any number."""
CNI_SHOWN = Bound("a value of it in words about what is wrong", 160, "characters", Above.CUT)
RESOLV_CONF = Bound("the resolv.conf that it names", 64 << 10, "bytes", Above.CUT)

# What an API server has of them, and a node keeps

OBJECTS = Bound(
    "objects of one kind, as an API server lists them", 1 << 18, "objects", Above.NOT_KEPT
)
OBJECTS_OF_ONE = Bound("... of one namespace", 1 << 16, "objects", Above.NOT_KEPT)
LIST_PAGES = Bound(
    "answers that make up one list of an API server", 1 << 18, "answers", Above.REFUSED
)
"""Pages without objects may come without an end."""
OBJECT_LABELS = Bound("labels of one object", 256, "labels", Above.REFUSED)
SERVICE_ADDRESSES = Bound(
    "addresses of one kind of a Service, such as externalIPs", 256, "addresses", Above.REFUSED
)
SOURCE_RANGES = Bound("loadBalancerSourceRanges of one Service", 1024, "prefixes", Above.REFUSED)
ENDPOINT_ADDRESSES = Bound("addresses of one endpoint", 100, "addresses", Above.REFUSED)
"""As the API server has it; the first is used. Source: discovery/v1/types.go."""
ENDPOINT_HINTS = Bound(
    "zones, and nodes, that an endpoint is meant for", 64, "hints", Above.REFUSED
)
POD_CONTAINERS = Bound("containers of one pod", 256, "containers", Above.REFUSED)
POD_PORTS = Bound("ports with names of one container", 256, "ports", Above.CUT)
POD_ADDRESSES = Bound("addresses of one pod", 16, "addresses", Above.REFUSED)
SERVICE_TARGETS = Bound(
    "ports of Services, times their addresses and endpoints, that a node keeps",
    524_288,
    "targets",
    Above.REFUSED,
)
"""A port of the node counts as an address, and a source range at each port as a target; so does
each port of an EndpointSlice, and each zone and node of an endpoint's hints, behind the first."""
SERVICE_TARGETS_OF_ONE = Bound("... of one namespace", 131_072, "targets", Above.REFUSED)
"""Some 1.3 kB each in the agent."""
POLICY_BYTES = Bound("policies, as JSON, that a node keeps", 64 << 20, "bytes", Above.REFUSED)
"""Then pods of the policy's namespace may do what those that are kept allow, and nothing else."""
POLICY_BYTES_OF_ONE = Bound("... of one namespace", 16 << 20, "bytes", Above.REFUSED)
"""Some 400,000 ipBlocks, which take fifteen times as much in the agent."""
POLICY_PARTS = Bound(
    "rules of policies, their ports, and demands of their selectors on labels, that a node keeps",
    262_144,
    "parts",
    Above.REFUSED,
)
"""As for their bytes. Each rule is gone by for each pod that its policy selects, each selector for
each pod that comes with other labels."""
POLICY_PARTS_OF_ONE = Bound("... of one namespace", 32_768, "parts", Above.REFUSED)
POLICY_PARTS_OF_ITSELF = Bound("... of one policy", 8_192, "parts", Above.REFUSED)
"""Then what it selects is closed, but for what other policies allow."""
POLICY_ELEMENTS = Bound(
    "addresses and ranges that rules for pods of one node mean, in each set of rules",
    1 << 22,
    "addresses and ranges",
    Above.REFUSED,
)
"""Some hundred bytes of the kernel's memory each. Pods of the namespace are closed then."""
POLICY_ELEMENTS_OF_ONE = Bound(
    "... of one namespace", 1 << 20, "addresses and ranges", Above.REFUSED
)
POLICY_WINDOWS = Bound(
    "sets of rules with ports that hold together at some port of a pod, one way",
    8_192,
    "rules in such sets",
    Above.REFUSED,
)
"""Then the pod is closed that way. What holds at several ports is counted once; each set becomes
sets of addresses in the kernel."""
POLICIES_REFUSED = Bound(
    "names of policies that are not kept, to know when all of a namespace are",
    16_384,
    "policies",
    Above.NOT_KEPT,
)
"""Then pods of the namespace are closed until the next list."""
POLICY_PODS = Bound(
    "labels, addresses and named ports of pods, that a node keeps for policies",
    1 << 22,
    "of them",
    Above.NOT_KEPT,
)
"""A pod that is not kept is in no policy's peers."""
POLICY_PODS_OF_ONE = Bound("... of one namespace", 1 << 20, "of them", Above.NOT_KEPT)
POLICY_NAMESPACES = Bound(
    "namespaces and their labels, that a node keeps for policies",
    1 << 18,
    "of them",
    Above.NOT_KEPT,
)
"""Pods of one that is not kept are in no policy's peers."""
KEPT_AT_ONCE = Bound(
    "files that a node writes at once since one of the objects in them has changed",
    256 << 20,
    "bytes",
    Above.WAITS,
)
KEPT_PER_S = Bound("... for long", 64 << 10, "bytes a second", Above.WAITS)
"""Each change writes the whole again, and a disk at the edge wears out."""
