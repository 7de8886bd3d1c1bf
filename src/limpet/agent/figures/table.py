"""Every figure of an agent: its name, its unit, its labels, and what it means."""

from __future__ import annotations

from limpet.base.metrics.figures import Figure

PREFIX = "limpet_agent_"
_TRUTH = "0 or 1"

NODE = (
    Figure("ready", _TRUTH, "1 while pods can be started"),
    Figure("attachments", "interfaces", "pod interfaces"),
    Figure(
        "addresses",
        "addresses",
        "of each segment by `state`: `live`: held by a pod, `bound`: kept for an absent pod, "
        "`resting`: released a moment ago, `free`: the rest, with resting ones",
        ("segment", "state"),
    ),
    Figure(
        "pod_forged_packets",
        "frames",
        "frames that pods may not send, dropped since the table was put the last time",
    ),
    Figure(
        "findings",
        "findings",
        "problems in the records of addresses; `limpet doctor` explains them",
    ),
    Figure(
        "rounds_total",
        "rounds",
        "rounds of each part of the datapath: `ports`: what pods may send from, `node`: links, "
        "addresses, rules for pods, `tunnel`: encrypted tunnels, `overlay`: routes to other nodes "
        "and what they may send, `policy` and `services` where they are on",
        ("part",),
    ),
    Figure("round_seconds_total", "seconds", "time that these rounds took", ("part",)),
    Figure("round_changes_total", "changes", "what rounds changed, or tried to", ("part",)),
    Figure(
        "round_failures_total",
        "changes",
        "those of them that failed, in each round that tried them",
        ("part",),
    ),
    Figure("last_round_failures", "changes", "not 0: the node is not as planned", ("part",)),
)
"""Figures of every node; those of the process and its disks: `OF_PROCESS`, `ROOM_ON_DISK`."""

POLICIES = (
    Figure("isolated_pods", "pods", "pods of the node that policies isolate"),
    Figure(
        "policy_dropped_packets",
        "packets",
        "packets that no policy allows, dropped since the table was made",
    ),
    Figure(
        "policies_troubled",
        "policies",
        "policies that cannot be read, and what is wrong with who tells them; `limpet policy list` "
        "says it",
    ),
)
"""Figures of a node that has network policies."""

CLUSTER = (
    Figure(
        "peers",
        "nodes",
        "other nodes by how they are reached: `route`, `vxlan`, `tunnel`, `relay`, `relay-tls`, "
        "`unreached`, and `apart` for those that are not meant to be",
        ("rung",),
    ),
    Figure(
        "silent_peers",
        "nodes",
        "those of them that answer by no way now; their last path stays",
    ),
    Figure(
        "peer_round_trip_seconds",
        "seconds",
        "round trips of the paths in use, smoothed: the median of all peers on the rung (`0.5`), "
        "and the longest (`1`)",
        ("rung", "quantile"),
    ),
    Figure("links", "links", "links to other nodes"),
    Figure("segments", "segments", "segments of this node"),
    Figure(
        "snapshot_revision",
        "revision",
        "highest revision of the cluster known here; nodes that lag behind the others are cut off "
        "from them",
    ),
    Figure("disk_trouble", _TRUTH, "1 while what the node knows cannot be written"),
    Figure("controller_connected", _TRUTH, "1 while a controller is connected"),
    Figure(
        "controller_refuses",
        _TRUTH,
        "1 while the controller refuses what the node tells or asks; `limpet status` has its words",
    ),
    Figure("removed", _TRUTH, "1 when the node was removed: a person has to act"),
    Figure("cloned", _TRUTH, "1 when another machine has its identity: a person has to act"),
    Figure(
        "peer_claims",
        "nodes",
        "other nodes that claim what is not their own, such as the MAC of another's VXLAN device; "
        "`limpet doctor` names them, and a person has to look",
    ),
    Figure(
        "forged_packets",
        "packets",
        "packets with a source that no peer may have, or for what is not the cluster's, dropped "
        "since the filter was put as a whole the last time",
    ),
    Figure(
        "cluster_key_info",
        "always 1",
        "the key that signs for the cluster, in short, as `limpet network show` has it",
        ("key",),
    ),
    Figure(
        "former_key_documents",
        "documents",
        "what a revoked key of the cluster has signed and somebody told this node all the same: it "
        "is refused, and somebody has that key",
    ),
    Figure(
        "tunnel_info",
        "always 1",
        "what makes the encrypted tunnel: `kernel`, `userspace`, `strongswan` or "
        "`strongswan-kernel` (with the kernel's ESP) with its version, `none` while there is no "
        "device",
        ("backend", "version"),
    ),
    Figure(
        "tunnel_trouble",
        _TRUTH,
        "1 while the node cannot have a tunnel that it should; `limpet status` says why",
    ),
    Figure(
        "tunnel_peers",
        "nodes",
        "peers of the tunnel: `known`, those with a `session`, those that are `active` (packets in "
        "the last 10 s)",
        ("state",),
    ),
    Figure(
        "tunnel_bytes_total",
        "bytes",
        "encrypted bytes, since the device and each peer were made",
        ("direction",),
    ),
    Figure(
        "relays",
        "relays",
        "relays that the node may use: `answering`, `silent`",
        ("state",),
    ),
    Figure(
        "messages_total",
        "datagrams",
        "datagrams of other nodes: `received`, `sent`, and why others were dropped",
        ("outcome",),
    ),
    Figure(
        "probes_total",
        "probes",
        "probes of paths: `asked_link`, `answered_site`, `refused_overlay`, …, `unproven` answers, "
        "and `held_back`: not asked, since a member has named an address where nobody answers too "
        "often",
        ("outcome",),
    ),
    Figure(
        "exchange_total",
        "messages",
        "messages of the exchange that were not answered",
        ("outcome",),
    ),
    Figure(
        "offers_total",
        "documents",
        "what was said of nodes, `cloud_fresh`, `neighbour_stale`, …",
        ("outcome",),
    ),
)
"""Figures of a node of a cluster."""

SERVICES = (
    Figure("services", "Services", "Services that are known"),
    Figure("service_elements", "elements", "elements of nftables for them"),
    Figure(
        "services_troubled",
        "Services",
        "Services that are not served as they ask; `limpet service list` says why",
    ),
    Figure(
        "services_left_out",
        "objects",
        "Services and EndpointSlices of which something is left out, since no node can use it; "
        "`limpet service list` says what",
    ),
    Figure("doubted_nodes", "nodes", "silent nodes whose endpoints rest here"),
    Figure("doubted_pods", "pods", "pods that are gone, whose endpoints rest here"),
    Figure(
        "services_connected",
        _TRUTH,
        "1 while the API server tells what changes of Services",
    ),
)
"""Figures of a node that serves Services."""

RELAY = (
    Figure("relay_active", _TRUTH, "1 while it relays"),
    Figure(
        "relay_trouble",
        _TRUTH,
        "1 while it works badly or not at all; `limpet status` says why",
    ),
    Figure("relay_pairs", "pairs", "pairs of nodes that it joins"),
    Figure("relay_tls_nodes", "nodes", "nodes that it serves in TLS"),
    Figure(
        "relay_packets_total",
        "packets",
        "packets by what the kernel did with them, since the relay's table was put",
        ("outcome",),
    ),
    Figure(
        "relay_events_total",
        "events",
        "pairs that were made and ended, checks, refusals, packets that were lost",
        ("what",),
    ),
)
"""Figures of a node that is a relay."""
