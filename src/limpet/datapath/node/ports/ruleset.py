"""nftables text of port security: a pod sends from its own addresses and MAC, or not at all.

Each frame of a pod comes to a bridge by the pod's host end, before the bridge learns from it: the
end's name, the frame's source MAC and its source address are looked up at once, whatever is in the
frame beside them. What has no element is dropped, so a pod that nobody has entered is cut off, not
free. So is every frame that is no plain IPv4, IPv6 or ARP (VLAN tags, LLDP, spanning tree).

Of its own addresses a pod may not say everything: routers' advertisements and redirects, answers of
a DHCP server, questions of a multicast querier, and neighbour advertisements of addresses that are
not its own are dropped. So is a first fragment of IPv6 that does not say what it carries: from
Linux 5.11 on receivers drop it (RFC 8200), older ones and others put it together.

The hook sees every port of every bridge of the node: others' ports pass. It does not see what a
bridge keeps to itself (LLDP and the like), from which bridges of ours learn nothing.

Source: br_handle_frame in net/bridge/br_input.c; RFC 4861, RFC 5227, RFC 2131, RFC 8415.
"""

from __future__ import annotations

from limpet.base.ownership import NFT_PORTS_TABLE, POD_IFNAME_PREFIX

FORGED_COUNTER = "forged"
"""Frames that pods may not send."""
OWN = {4: "own4", 6: "own6"}
"""Single addresses, by IP version: a look costs the same however many there are."""
WIDE = {4: "wide4", 6: "wide6"}
"""What pods may send from beside their own, prefixes too; there with the first such pod, since sets
of ranges need Linux 5.6."""
UNCHECKED = "unchecked"
"""Host ends of pods that may send what they like."""
_OWN6_KEY = "typeof iifname . ether saddr . @nh,64,128"
"""The source address; as bits of a payload it compares with a target of neighbour discovery too."""
_DROP = f'counter name "{FORGED_COUNTER}" drop'
_PODS = f'iifname "{POD_IFNAME_PREFIX}*"'


def plan_frame(*, wide: bool) -> str:
    """The table without elements. `wide`: some pod may send from more than its own."""
    names = [OWN, WIDE] if wide else [OWN]
    lines = [f"table bridge {NFT_PORTS_TABLE} {{", f"\tcounter {FORGED_COUNTER} {{", "\t}", ""]
    for each in names:
        flags = ["\t\tflags interval"] if each is WIDE else []
        for version, key in ((4, "type ifname . ether_addr . ipv4_addr"), (6, _OWN6_KEY)):
            lines += [f"\tset {each[version]} {{", f"\t\t{key}", *flags, "\t}", ""]
    lines += [f"\tset {UNCHECKED} {{", "\t\ttype ifname", "\t}", ""]
    for name, rules in _chains(names):
        lines += [f"\tchain {name} {{", *(f"\t\t{rule}" for rule in rules), "\t}", ""]
    lines[-1] = "}"
    return "\n".join(lines) + "\n"


def _chains(names: list[dict[int, str]]) -> list[tuple[str, list[str]]]:
    port, sender = "iifname . ether saddr", "iifname . arp saddr ether"
    return [
        (FORGED_COUNTER, [_DROP]),
        (
            "target6",
            [*(f"{port} . @th,64,128 @{each[6]} accept" for each in names), "goto forged"],
        ),
        # Who looks for duplicates asks for its own address, others for any.
        ("solicited6", ["ip6 saddr != :: accept", "goto target6"]),
        # UDP to a DHCP client, queries of IGMP: bits of the headers, since every packet
        # is asked, and nft would load its type and protocol once more for each.
        (
            "from4",
            [f"@nh,72,8 0x11 @th,16,16 0x44 {_DROP}", f"@nh,72,8 0x2 @th,0,8 0x11 {_DROP}"],
        ),
        # What cannot be read is the rest of a datagram, or a first fragment that ends before what
        # it carries (RFC 7112): what comes with that, no rule would see.
        ("rest6", ["frag frag-off != 0 accept", _DROP]),
        ("udp6", ["udp dport != 546 accept", "goto rest6"]),
        (
            "icmp6",
            [
                "icmpv6 type vmap { mld-listener-query : goto forged, "
                "nd-router-advert : goto forged, nd-neighbor-solicit : goto solicited6, "
                "nd-neighbor-advert : goto target6, nd-redirect : goto forged }",
                "icmpv6 type 0-255 accept",
                "goto rest6",
            ],
        ),
        (
            "from6",
            [
                # By numbers: nft looks names up in /etc/protocols, which an image need not have.
                "meta l4proto vmap { 17 : goto udp6, 58 : goto icmp6 }",
                "meta l4proto 0-255 accept",
                "goto rest6",
            ],
        ),
        (
            "prerouting",
            [
                # Before policies, NAT between ports, and br_netfilter.
                "type filter hook prerouting priority -320; policy accept;",
                # The type is that of the frame itself: of a tagged one it is the tag's.
                *(f"ether type ip {port} . ip saddr @{each[4]} goto from4" for each in names),
                *(f"ether type ip6 {port} . @nh,64,128 @{each[6]} goto from6" for each in names),
                *(
                    f"ether type arp {port} . arp saddr ip @{each[4]} "
                    f"{sender} . arp saddr ip @{each[4]} accept"
                    for each in names
                ),
                f"iifname @{UNCHECKED} accept",
                f"{_PODS} {_DROP}",
            ],
        ),
    ]
