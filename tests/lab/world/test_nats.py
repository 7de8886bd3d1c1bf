"""The lab's gateways, seen by plain UDP sockets: no agent runs here.

What must not come through is sent before something that does: packets of these wires do not
overtake each other, so nothing has to be waited for.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from limpet.lab.command import LabError, run_command
from limpet.lab.topology import parse_topology
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import pings
from limpet.lab.world.world import World
from limpet.lab.world.worlds import new_world, take_down
from limpet.linux.namespaces import Namespace
from tests.waiting import PATIENCE_S

TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::a/64"]
nodes = { hub = 0, quay = 0 }
relays = ["hub"]
[site.cone]
lan = ["192.168.1.0/24"]
nat = "cone"
hairpin = true
nodes = { cone-1 = 0, cone-2 = 0 }
[site.port]
lan = ["192.168.1.0/24", "2001:db8:b::/64"]
nat = "port-restricted"
udp_timeout_s = 17
rate_mbit = 500
nodes = { port-1 = 0, port-2 = 0 }
[site.symm]
lan = ["192.168.1.0/24"]
nat = "symmetric"
hairpin = true
nodes = { symm-1 = 0, symm-2 = 0 }
[site.cgn]
lan = ["192.168.1.0/24"]
nat = "cgn"
hairpin = true
nodes = { cgn-1 = 0, cgn-2 = 0 }
[site.six]
lan = ["2001:db8:a::/64"]
nodes = { six-1 = 0 }
[site.mute]
lan = ["192.168.1.0/24"]
nat = "cone"
udp = "blocked"
nodes = { mute-1 = 0 }
"""
KINDS = ("cone", "port", "symm", "cgn")
At = tuple[str, int]
_ports = itertools.count(5001)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("nats")
    made = new_world(parse_topology(TOPOLOGY, "nats", "a test"), f"nats{os.getpid()}", folder)
    try:
        made.build()
        yield made
    finally:
        take_down(made.name, folder)


@dataclass
class Sockets:
    """UDP sockets in machines, each on a port that no other test has."""

    world: World
    open: ExitStack = field(default_factory=ExitStack)

    def on(self, name: str, version: int = 4) -> socket.socket:
        machine = self.world.machine(name)
        (address,) = (str(a.ip) for a in machine.addresses if a.version == version)
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        with Namespace(machine.netns_path) as namespace, namespace.entered():
            made = self.open.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        made.bind((address, next(_ports)))
        made.settimeout(PATIENCE_S)
        return made


@pytest.fixture
def sockets(world: World) -> Iterator[Sockets]:
    made = Sockets(world)
    with made.open:
        yield made


def own(one: socket.socket) -> At:
    name = one.getsockname()
    return name[0], name[1]


def heard(one: socket.socket) -> tuple[bytes, At]:
    words, source = one.recvfrom(100)
    return words, (source[0], source[1])


def mapped(inner: socket.socket, outer: socket.socket) -> At:
    """Where `outer` sees `inner`, which speaks to it."""
    inner.sendto(b"where am I", own(outer))
    words, source = heard(outer)
    assert words == b"where am I"
    return source


def gets(inner: socket.socket, source: socket.socket, at: At, *, after: socket.socket) -> bool:
    """What `source` sends to `at` comes to `inner`. `after` may speak to it at all times."""
    source.sendto(b"let me in", at)
    known = mapped(inner, after)
    after.sendto(b"that is all", known)
    words = [heard(inner)[0]]
    if words == [b"let me in"]:
        words.append(heard(inner)[0])
    assert words[-1] == b"that is all"
    return len(words) == 2


def public(world: World, site: str) -> str:
    return str(world.gateway(site).public)


@pytest.mark.parametrize(
    ("site", "same"), [("cone", True), ("port", True), ("symm", False), ("cgn", True)]
)
def test_one_mapping_serves_all_destinations_but_where_the_nat_is_symmetric(
    world: World, sockets: Sockets, site: str, same: bool
) -> None:
    inner, destinations = sockets.on(f"{site}-1"), [sockets.on("hub"), sockets.on("quay")]

    seen = [mapped(inner, each) for each in (*destinations, sockets.on("hub"))]

    assert {address for address, _ in seen} == {public(world, site)}
    assert len(set(seen)) == (1 if same else 3)
    assert mapped(inner, destinations[0]) == seen[0]


@pytest.mark.parametrize(
    ("site", "keeps"), [("cone", False), ("port", True), ("symm", False), ("cgn", False)]
)
def test_only_a_port_restricted_nat_shows_the_port_of_the_lan(
    sockets: Sockets, site: str, keeps: bool
) -> None:
    inner = sockets.on(f"{site}-1")

    assert (mapped(inner, sockets.on("hub"))[1] == own(inner)[1]) == keeps


@pytest.mark.parametrize(
    ("site", "open_"), [("cone", True), ("port", False), ("symm", False), ("cgn", False)]
)
def test_only_a_cone_lets_somebody_in_that_nobody_spoke_to(
    sockets: Sockets, site: str, open_: bool
) -> None:
    inner, known = sockets.on(f"{site}-1"), sockets.on("hub")
    at = mapped(inner, known)

    assert gets(inner, sockets.on("quay"), at, after=known) == open_
    assert gets(inner, sockets.on("hub"), at, after=known) == open_  # another port of the known


def test_a_port_that_is_shown_for_two_of_the_lan_leads_to_the_newer_one(sockets: Sockets) -> None:
    """The kernel takes one at random; what it shows to others is not in its way."""
    known = sockets.on("hub"), sockets.on("quay")
    seen: set[At] = set()
    for number in range(2_000):  # some 200 are enough
        inner, after = sockets.on("cone-1"), known[number % 2]
        at = mapped(inner, after)
        if at in seen:
            break
        seen.add(at)
        inner.close()
    else:
        pytest.fail("the kernel has shown no port for two")

    assert gets(inner, sockets.on("quay"), at, after=after)


@pytest.mark.parametrize(
    ("one", "other"), [("port-1", "cgn-1"), ("port-1", "cone-1"), ("cgn-1", "cone-1")]
)
def test_two_that_send_to_each_other_get_through_whoever_was_first(
    sockets: Sockets, one: str, other: str
) -> None:
    hub, near, far = sockets.on("hub"), sockets.on(one), sockets.on(other)
    near_at, far_at = mapped(near, hub), mapped(far, hub)

    near.sendto(b"early", far_at)
    far.sendto(b"through", near_at)

    assert heard(near) == (b"through", far_at)
    near.sendto(b"back", far_at)
    if other == "cone-1":
        assert heard(far) == (b"early", near_at)
    assert heard(far) == (b"back", near_at)
    assert (mapped(near, hub), mapped(far, hub)) == (near_at, far_at)


def test_a_symmetric_nat_meets_a_cone_but_no_port_restricted_one(sockets: Sockets) -> None:
    hub, inner = sockets.on("hub"), sockets.on("symm-1")
    shut, wide = sockets.on("port-1"), sockets.on("cone-1")
    at, shut_at, wide_at = (mapped(each, hub) for each in (inner, shut, wide))

    shut.sendto(b"punch", at)
    assert not gets(shut, inner, shut_at, after=hub)
    inner.sendto(b"hello", wide_at)
    words, came_from = heard(wide)
    wide.sendto(b"welcome", came_from)

    assert (words, heard(inner)) == (b"hello", (b"welcome", wide_at))
    assert came_from != at


@pytest.mark.parametrize("site", ["cone", "symm"])
def test_with_hairpin_the_lan_reaches_itself_by_its_outer_address(
    world: World, sockets: Sockets, site: str
) -> None:
    one, other, hub = sockets.on(f"{site}-1"), sockets.on(f"{site}-2"), sockets.on("hub")
    at = mapped(other, hub)

    one.sendto(b"round the corner", at)
    words, source = heard(other)
    other.sendto(b"and back", source)

    assert (words, source[0]) == (b"round the corner", public(world, site))
    assert heard(one) == (b"and back", at)


def test_behind_a_carrier_both_ends_have_to_send_for_the_hairpin(
    world: World, sockets: Sockets
) -> None:
    one, other, hub = sockets.on("cgn-1"), sockets.on("cgn-2"), sockets.on("hub")
    one_at, other_at = mapped(one, hub), mapped(other, hub)

    one.sendto(b"early", other_at)
    other.sendto(b"through", one_at)

    assert heard(one) == (b"through", other_at)
    assert other_at[0] == public(world, "cgn")


def test_without_hairpin_the_outer_address_leads_nowhere_from_inside(sockets: Sockets) -> None:
    one, other, hub = sockets.on("port-1"), sockets.on("port-2"), sockets.on("hub")
    at = mapped(other, hub)
    other.sendto(b"punch", mapped(one, hub))

    assert not gets(other, one, at, after=hub)


def test_sites_that_number_their_lans_alike_are_told_apart_by_their_outer_addresses(
    world: World, sockets: Sockets
) -> None:
    hub = sockets.on("hub")
    inner = [sockets.on(f"{site}-1") for site in KINDS]

    seen = [mapped(each, hub)[0] for each in inner]

    assert {own(each)[0] for each in inner} == {"192.168.1.11"}
    assert seen == [public(world, site) for site in KINDS]
    assert len(set(seen)) == len(KINDS)


def test_gateways_are_places_of_the_world_and_a_carrier_s_is_where_there_is_one(
    world: World,
) -> None:
    wans = {
        name: run_command("ip", "-4", "-br", "addr", "show", "wan", netns=world.netns_of(name))
        for name in ("cgn.router", "cgn.carrier", "cone.router")
    }

    assert "100.64." in wans["cgn.router"]
    assert public(world, "cgn") in wans["cgn.carrier"]
    assert public(world, "cone") in wans["cone.router"]
    with pytest.raises(LabError, match=r"find cone\.carrier"):
        world.netns_of("cone.carrier")


def test_nobody_has_a_route_into_a_lan_behind_a_nat(world: World) -> None:
    with pytest.raises(LabError, match="unreachable"):
        run_command("ip", "route", "get", "192.168.1.11", netns=world.wires.backbone)


def test_where_udp_is_blocked_the_rest_passes_until_udp_is_allowed(
    world: World, sockets: Sockets
) -> None:
    mute, hub = sockets.on("mute-1"), sockets.on("hub")
    hub_at = own(hub)

    mute.sendto(b"silence", hub_at)
    assert pings(world.machine("mute-1").name, hub_at[0])
    world.gateway("mute").allow_udp()
    at = mapped(mute, hub)  # the first that is heard
    world.gateway("mute").block_udp()
    hub.sendto(b"silence", at)
    mute.sendto(b"silence", hub_at)
    world.gateway("mute").reboot()
    mute.sendto(b"silence", hub_at)
    assert pings(world.machine("mute-1").name, hub_at[0])
    world.gateway("mute").allow_udp()

    again = mapped(mute, hub)
    hub.sendto(b"words", again)
    assert heard(mute)[0] == b"words"


@pytest.mark.parametrize("site", KINDS)
def test_a_gateway_that_rebooted_maps_to_another_port_and_has_forgotten_the_old_one(
    world: World, sockets: Sockets, site: str
) -> None:
    inner, hub, quay = sockets.on(f"{site}-1"), sockets.on("hub"), sockets.on("quay")
    before = mapped(inner, hub)

    world.gateway(site).reboot()
    after = mapped(inner, hub)

    assert after[0] == before[0]
    assert after[1] != before[1]
    assert not gets(inner, hub, before, after=hub)
    assert (mapped(inner, quay) == after) == (site != "symm")


@pytest.mark.parametrize("site", KINDS)
def test_a_public_address_that_changes_is_another_one_and_known_to_later_commands(
    world: World, sockets: Sockets, site: str
) -> None:
    inner, hub = sockets.on(f"{site}-1"), sockets.on("hub")
    before = mapped(inner, hub)[0]

    world.gateway(site).change_public_address()
    world.save()

    seen = mapped(inner, hub)[0]
    assert seen == public(World.open(world.folder), site) != before
    hub.sendto(b"to the old one", (before, 5000))  # nobody has it: nothing comes of it
    assert pings(world.machine(f"{site}-1").name, own(hub)[0])


def test_a_site_without_a_nat_has_no_public_address_to_change(world: World) -> None:
    with pytest.raises(LabError, match=r"six: it has no NAT, its nodes have addresses of their"):
        world.gateway("six").change_public_address()
    with pytest.raises(LabError, match="find the gateway of moon: that is no site"):
        world.gateway("moon").reboot()


def test_a_site_of_ipv6_alone_reaches_the_cloud_and_is_reached(
    world: World, sockets: Sockets
) -> None:
    six, hub = sockets.on("six-1", 6), sockets.on("hub", 6)

    assert mapped(six, hub) == own(six)
    assert gets(six, sockets.on("quay", 6), own(six), after=hub)
    assert "inet " not in run_command(
        "ip", "addr", "show", "eth0", netns=world.machine("six-1").name
    )


def test_ipv6_behind_a_nat_is_not_translated_and_lets_only_answers_in(sockets: Sockets) -> None:
    inner, hub = sockets.on("port-1", 6), sockets.on("hub", 6)

    assert mapped(inner, hub) == own(inner)
    assert not gets(inner, sockets.on("quay", 6), own(inner), after=hub)


def test_a_nat_forgets_when_the_topology_says_so(world: World) -> None:
    site = world.topology.site("port")
    assert site is not None
    router = world.wires.router(site)
    folder = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"

    shown = run_command("cat", folder, f"{folder}_stream", netns=router)

    assert shown.split() == ["17", "17"]


def test_a_limited_link_is_limited_both_ways(world: World) -> None:
    site = world.topology.site("port")
    assert site is not None
    for netns, ifname in ((world.wires.router(site), "wan"), (world.wires.backbone, "port")):
        shown = json.loads(run_command("tc", "-j", "qdisc", "show", "dev", ifname, netns=netns))
        assert [(q["kind"], q["options"]["rate"]) for q in shown] == [("tbf", 500_000_000 / 8)]


def test_nodes_of_the_cloud_have_public_addresses_and_are_cut_off_with_it(world: World) -> None:
    hub: Machine = world.machine("hub")
    assert [str(each.ip) for each in hub.addresses] == ["203.0.113.11", "2001:db8:c::b"]
    assert [machine.label for machine in world.select("cloud")] == ["hub", "quay"]
    assert (hub.node.roles, world.machine("quay").node.roles) == (("cloud", "relay"), ("cloud",))

    world.cut("cloud")
    try:
        assert not pings(world.machine("cone-1").name, "203.0.113.11", within_s=1)
        assert pings(hub.name, "203.0.113.10")
    finally:
        world.restore("cloud")
    assert pings(world.machine("cone-1").name, "203.0.113.11")
