"""What marks an object in the kernel as ours: names, groups, marks, tables, metrics."""

from __future__ import annotations

ALIAS = "limpet"
"""Link alias of the bridges that we made; only those are ever deleted."""

POD_IFNAME_PREFIX = "lim"
"""Host end of a pod: the prefix and 12 hexadecimal digits."""

DYING_IFNAME_PREFIX = "limx"
"""Host end that waits for its removal: the prefix and 11 hexadecimal digits."""

SHAPER_IFNAME_PREFIX = "lims"
"""The ifb through which a pod's egress is limited: the prefix and 11 hexadecimal digits.

Like that of a dying link no hexadecimal digit itself, or it could be the name of a pod's host end.
"""

NFT_TABLE = "limpet"

NFT_OVERLAY_TABLE = "limpet_overlay"
"""Table of the network between nodes: its sets are large, and change with peers instead of pods."""

NFT_POLICY_TABLE = "limpet_policy"
"""Tables of network policies: one of family inet, one of family bridge."""

NFT_POLICY_SPARE_TABLE = "limpet_policy_spare"
"""There for a moment, of the same families: it holds pods while those are put anew."""

POLICY_SOCKET = "policies"
"""Name of the socket of these, where a service manager keeps it while no agent runs."""

NFT_POLICY_TRIAL_TABLE = "limpet_policy_trial"
"""Never there: it is made and deleted in one transaction, to see what the kernel can."""

NFT_PORTS_TABLE = "limpet_ports"
"""Table of family bridge: what each pod may send from."""

NFT_SHARED_PORT_TABLE = "limpet_tunnel"
"""Table of the port that the tunnel and the agent share."""

NFT_SERVICES_TABLE = "limpet_services"
"""Table of Services: which endpoint the first packet of a flow goes to."""

NFT_SERVICES_SCRATCH_TABLE = "limpet_services_read"
"""Table that is there for a moment: it has, unused, what that of Services should have."""

NFT_RELAY_TABLE = "limpet_relay"
"""Table of a relay: what comes for its pairs of ports goes on to the other end."""

TUNNEL_PORTS = range(23000, 30000)
"""UDP ports of tunnels, each made from its key: above a relay's usual ports, below those of
Kubernetes' NodePorts (30000 and up) and those that kernels give to sockets that ask for any (32768
and up)."""

ROUTE_TABLE = 5148
"""Our routing table, looked up before main by a rule of the same priority."""

RULE_PRIORITY = 5148

SEGMENT_METRIC = 100

UNREACHABLE_METRIC = 65000
"""Explicit, since IPv6 turns 0 into 1024. Source: net/ipv6/route.c, IP6_RT_PRIO_USER."""

POD_GROUP = 0x6C696D00
"""Link group of pods' host ends; marks them as ours beside their name."""

DYING_GROUP = 0x6C696D01
"""Link group that is deleted at one go."""

VXLAN_IFNAME_PREFIX = "limvx"
"""VXLAN device of the network between nodes: the prefix and the IP version of its underlay."""

VXLAN_GROUPS = {4: 0x6C696D04, 6: 0x6C696D06}
"""Link group of our VXLAN devices by IP version of the underlay.

Given at creation, as an alias cannot be; and the kernel does not tell the version of a device that
has no address of its own.
"""

OVERLAY_PROTOCOL = 148
"""Origin of routes to peers: tells them from the node's own in the table that both share.

Source: include/uapi/linux/rtnetlink.h; RTPROT_STATIC is 4, routing daemons have theirs.
"""

PEER_METRIC = 200
"""Metric of a route to a peer's segment."""

BEHIND_METRIC = 300
"""Metric of a route to a prefix behind a peer: a segment of the same prefix goes before it."""

MASQUERADE_MARK = 0x2000
"""Packet mark of the first packet of a flow that must be masqueraded.

The bit of the reference portmap plugin, with the same meaning.
"""

SERVICE_MARK = 0x0800
"""Packet mark of the first packet of a flow that went to a Service and is of no pod."""

TUNNEL_IFNAME = "limwg0"

TUNNEL_GROUP = 0x6C696D07
"""Link group of our tunnel device; an alias cannot be given at creation."""

TUNNEL_MARK = 0x1000
"""Mark of the packets that carry a tunnel: a rule keeps them out of our routing table."""

TUNNEL_RULE_PRIORITY = 5147
"""Priority of the rule for TUNNEL_MARK: just before the one that looks up our table."""

IPSEC_IFNAME = "ipsec0"
"""Name of the daemon's tunnel device, fixed in its kernel-libipsec plugin. Where the kernel makes
ESP, its xfrm interface has the same."""

IPSEC_TABLE = 5150
"""The daemon's own routes; nothing is looked up there, see `IPSEC_RULE_PRIORITY`."""

IPSEC_RULE_PRIORITY = 40000
"""After the tables main and default: the daemon cannot be kept from adding its rule and routes."""

IPSEC_PORT_TABLE = "limpet_ipsec"

IPSEC_FOLDER = "ipsec"
"""In the agent's run folder."""

IPSEC_SOCKET = "vici.sock"
"""In that folder: while it is there, a daemon of ours may run."""

OWN_POLICIES, KUBERNETES_POLICIES = "policies.json", "policies-of-kubernetes.jsonl"
"""Files in the state folder: network policies of this node alone, and those of a Kubernetes."""

DNS_IFNAME = "limdns0"
"""Holds the addresses where this node answers names."""

DNS_GROUP = 0x6C696D08
"""Link group of that one."""
