"""Pictures of worlds that are made up by chance: for what has to show a thousand nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator

from limpet.picture.nodes import Machine, Node, NodeState, Relay, RelayLoad, Segment, Site
from limpet.picture.pair import (
    Direction,
    Outward,
    Pair,
    PairDetail,
    PolicyOnPair,
    Probe,
    Reach,
    Traffic,
    Way,
)
from limpet.picture.picture import Also, Community, Network, Picture, Viewer
from limpet.picture.said import Finding, Level
from limpet.picture.timeline import Entry, Timeline
from limpet.picture.workloads import Endpoint, Policy, Service, Workloads

LEFT_OUT = "of Service shop/api-0 is left out: externalIPs '<b>': no address of a Service"
NOW_S = 1_800_000_000.0
_TOWNS = ("harbour", "quay", "mill", "depot", "tower", "lodge", "farm", "ridge", "plant", "yard")
_NATS = ("none", "cone", "cone", "port-restricted", "symmetric")


def world(nodes: int, seed: int = 1) -> Picture:
    """As the controller sees it; the first three nodes are the cloud's, and two of them relay."""
    chance = random.Random(seed)
    towns = [f"{_TOWNS[at % len(_TOWNS)]}-{at // len(_TOWNS) + 1}" for at in range(nodes)]
    made: list[Node] = []
    sites: list[Site] = [Site(name="cloud", by="label")]
    for at in range(min(3, nodes)):
        made.append(_node(chance, at, "cloud", ("cloud", "relay") if at < 2 else ("cloud",), ()))
    while len(made) < nodes:
        name, nat = towns[len(sites)], chance.choice(_NATS)
        sites.append(Site(name=name, by=chance.choice(("label", "proven")), nat=nat))
        communities = (f"line-{len(sites) % max(2, nodes // 60)}",)
        for _ in range(min(nodes - len(made), chance.choice((2, 3, 5, 8, 12, 20, 34)))):
            made.append(_node(chance, len(made), name, ("edge",), communities))
    by_uid = sorted(made, key=lambda each: each.uid)
    return Picture(
        as_of_s=NOW_S,
        version="1",
        revision=4711,
        viewer=Viewer(kind="controller", name="controller", version="0.1.0"),
        network=Network(
            name="tideland",
            pod_cidrs=("10.244.0.0/14", "fd00:244::/40"),
            default_community="none",
            encryption="between-sites",
            backend="wireguard",
        ),
        sites=tuple(sorted(sites, key=lambda each: each.name)),
        nodes=tuple(by_uid),
        pairs=tuple(_pairs(chance, by_uid)),
        relays=tuple(
            Relay(
                uid=each.uid,
                endpoint="203.0.113.7:51820",
                tls="203.0.113.7:443",
                answers=True,
                rtt_ms=18.0,
                load=RelayLoad(
                    pairs=chance.randrange(400),
                    most_pairs=512,
                    bytes_per_s=2.4e6,
                    node_most_bytes_per_s=2.5e7,
                ),
            )
            for each in by_uid
            if "relay" in each.roles
        ),
        communities=tuple(_communities(by_uid)),
        workloads=_workloads(chance, by_uid),
        also=Also(findings=tuple(_findings(by_uid))),
    )


def detail(picture: Picture, one: str, other: str) -> PairDetail:
    """Of a pair by a relay: all that a page can show."""
    found = next((each for each in picture.pairs if (each.one, each.other) == (one, other)), None)
    pair = found or Pair(one=one, other=other)
    probes = (
        Probe(
            rung="route",
            what="same link",
            to="192.168.7.20",
            device="eth0",
            answered=False,
            asked_at_s=NOW_S - 40,
            misses=3,
            why="no answer with hop limit 1",
        ),
        Probe(rung="vxlan", what="same site", to="192.168.7.20", answered=False, misses=3),
        Probe(
            rung="tunnel",
            what="tunnel",
            to="198.51.100.9:51820",
            answered=False,
            misses=12,
            asked_at_s=NOW_S - 4,
        ),
        Probe(
            rung="relay",
            what="tunnel",
            to="cloud-0",
            answered=True,
            in_use=True,
            rtt_ms=31.4,
            asked_at_s=NOW_S - 2,
            answered_at_s=NOW_S - 2,
        ),
        Probe(rung="relay-tls", what="tunnel", to="cloud-0", why="UDP gets out"),
    )
    side = Direction(
        way=pair.there,
        outward=Outward(device="limwg0", endpoint="203.0.113.7:40122", mtu_bytes=1420, underlay=""),
        traffic=Traffic(sent_bytes=81_234_567, received_bytes=1_234_567, handshake_at_s=NOW_S - 77),
        nat="symmetric",
        endpoints=("198.51.100.7:33211",),
        probes=probes,
        why_not_direct="both NATs give each destination another port, so neither can be punched",
        mend=(
            "forward UDP port 51820 to this node at its gateway",
            "turn on port mapping (UPnP, NAT-PMP or PCP) at the gateway",
        ),
    )
    return PairDetail(
        one=one,
        other=other,
        there=side,
        why_unknown="it has not reported since Tuesday",
        communities=("line-1",),
        policies=(
            PolicyOnPair(
                name="shop/api",
                direction="ingress",
                node=other,
                pods=2,
                words="lets in TCP 8080 of shop/front alone",
            ),
        ),
        as_of_s=NOW_S,
    )


def timeline(picture: Picture, count: int = 60, seed: int = 1) -> Timeline:
    chance = random.Random(seed)
    pairs = chance.choices(picture.pairs, k=count)
    return Timeline(
        entries=tuple(
            Entry(
                sequence=count - at,
                at_s=NOW_S - 7 - at * at * 9.0,
                kind="path",
                words="lost its tunnel, by a relay now" if at % 3 else "climbed to the tunnel",
                level=Level.WARN if at % 3 else Level.OK,
                node=pair.one,
                peer=pair.other,
                was="tunnel",
                became="relay",
            )
            for at, pair in enumerate(pairs)
        ),
        more=True,
        from_at_s=NOW_S - 400_000,
    )


def _node(
    chance: random.Random, at: int, site: str, roles: tuple[str, ...], communities: tuple[str, ...]
) -> Node:
    is_silent, live = chance.random() < 0.03, chance.randrange(3, 61)
    return Node(
        uid=f"{chance.randrange(1 << 64):016x}",
        name=f"{site}-node-{at}",
        site=site,
        roles=roles,
        communities=communities,
        labels={"site": site, "tier": "cloud" if "cloud" in roles else "edge"},
        state=NodeState.SILENT if is_silent else NodeState.ANSWERS,
        why="nothing was heard from it for 2 h" if is_silent else "",
        segments=(
            Segment(
                prefix=f"10.{244 + at // 1024}.{at // 4 % 256}.{at % 4 * 64}/26",
                size=64,
                free=61 - live,
                live=live,
                resting=chance.randrange(3),
                bound=4,
            ),
        ),
        pods=live,
        machine=Machine(
            addresses=(f"192.168.{at % 250}.{at % 200 + 2}",),
            nat={"ipv4": chance.choice(_NATS)},
            link_mtu_bytes=1500,
            version="0.1.0",
            backend="wireguard",
            joined_at_s=NOW_S - 3e6,
            heard_at_s=NOW_S - (7200 if is_silent else chance.randrange(30)),
        ),
    )


def _pairs(chance: random.Random, nodes: list[Node]) -> Iterator[Pair]:
    groups: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        groups.setdefault(node.communities[0] if node.communities else "", []).append(at)
    cloud = groups.pop("", [])
    chosen = {(min(a, b), max(a, b)) for a in cloud for b in range(len(nodes)) if a != b}
    for members in groups.values():
        chosen |= {(a, b) for a in members for b in members if a < b}
    for a, b in sorted(chosen):
        one, other = nodes[a], nodes[b]
        there = _way(chance, one, other, (cloud and nodes[cloud[0]].uid) or "")
        yield Pair(one=one.uid, other=other.uid, there=there, back=there)


def _way(chance: random.Random, one: Node, other: Node, relay: str) -> Way:
    since_s = NOW_S - chance.randrange(400_000)
    if NodeState.SILENT in (one.state, other.state):
        return Way(reach=Reach.LOST, rung="tunnel", loss=1.0, since_at_s=since_s)
    if one.site == other.site:
        rung = chance.choice(("route", "route", "route", "vxlan"))
        return Way(reach=Reach.REACHED, rung=rung, rtt_ms=0.4, since_at_s=since_s, loss=0.0)
    draw = chance.random()
    if draw < 0.004:
        return Way(reach=Reach.NO_PATH)
    rung = "tunnel" if draw < 0.8 else "relay" if draw < 0.97 else "relay-tls"
    return Way(
        reach=Reach.REACHED,
        rung=rung,
        relay=relay if rung.startswith("relay") else "",
        rtt_ms=float(chance.randrange(8, 90)),
        loss=chance.choice((0.0, 0.0, 0.0, 0.02)),
        since_at_s=since_s,
    )


def _communities(nodes: list[Node]) -> Iterator[Community]:
    names = sorted({name for node in nodes for name in node.communities})
    for name in names:
        members = tuple(node.uid for node in nodes if name in node.communities)
        yield Community(name=name, members=members, selector=f"line={name}")


def _workloads(chance: random.Random, nodes: list[Node]) -> Workloads:
    def endpoints(service: int) -> Iterator[Endpoint]:
        for at in range(chance.randrange(1, 6)):
            node = chance.choice(nodes)
            is_in = node.state is NodeState.ANSWERS
            yield Endpoint(
                address=f"10.244.{service}.{at + 2}:8080",
                port="http 80/tcp",
                pod=f"shop/api-{at}",
                node=node.uid,
                in_rotation=is_in,
                why="" if is_in else "its node is silent",
                weight=int(is_in),
                connections=at * 3,
            )

    def service(at: int) -> Service:
        found = tuple(endpoints(at))
        return Service(
            name=f"shop/api-{at}",
            type="ClusterIP",
            addresses=(f"10.96.0.{at + 1}",),
            ports=("80/tcp",),
            endpoints=found,
            endpoints_in_rotation=sum(each.in_rotation for each in found),
            endpoints_total=len(found),
            left_out=(LEFT_OUT,) if at == 0 else (),
        )

    return Workloads(
        services=tuple(map(service, range(12))),
        policies=(
            Policy(
                name="shop/api",
                directions=("ingress",),
                pods=4,
                words="lets in TCP 8080 of shop/front alone",
            ),
        ),
    )


def _findings(nodes: list[Node]) -> Iterator[Finding]:
    for node in nodes:
        if node.state is NodeState.SILENT:
            yield Finding(
                level=Level.FAIL,
                what=f"{node.name} is silent",
                node=node.uid,
                why="nothing was heard from it for 2 h",
                mend="look whether the machine runs, and its agent: systemctl status limpet-agent",
                topic="offline",
            )
    yield Finding(
        level=Level.WARN,
        what="clock of the controller is 4 s ahead",
        why="by what nodes say",
        mend="timedatectl set-ntp true",
    )
    yield Finding(level=Level.OK, what="all nodes run one version")
