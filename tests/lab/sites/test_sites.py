"""Sites behind NATs: pods reach each other by pod address, straight or by a relay that is blind."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from limpet.base.decoding import convert
from limpet.base.settings import KEEPALIVE_S
from limpet.datapath.tunnel.wireguard.device import kernel_has_wireguard
from limpet.lab.world.machine import Machine
from limpet.lab.world.tunnels import end_tunnel
from limpet.lab.world.world import World
from limpet.picture.nodes import RelayLoad
from limpet.picture.picture import Picture
from tests.beds.traffic.silence import Silence
from tests.lab.bed import a_world, doctor, echo, echoing, limpet
from tests.lab.forging import hearing
from tests.lab.policies import policies_hold
from tests.lab.rungs import (
    FAR,
    NATED,
    NEAR,
    RUNGS,
    WITHIN_S,
    all_reach,
    is_as_planned,
    peer,
    rung,
    tell,
    the_pod,
    until_as_before,
    until_on,
)
from tests.lab.strangers import (
    SECRET,
    capturing,
    keepalives,
    say_in_secret,
    send_by_tunnel,
    tunnel_key,
    tunnel_peers,
)
from tests.waiting import PATIENCE_S, wait_until

UDP_HEADERS = {4: 28, 6: 48}
TUNNEL_MTU_BYTES = 1440
"""What a link of 1500 leaves."""
AVERAGED_S = (60, 75)
"""What a relay says of its load is an average over a minute, and over what passes until it looks at
its counters again: five seconds, and more on a busy machine."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(NATED, tmp_path_factory.mktemp("across")) as world:
        yield world


@pytest.fixture
def world(built: World) -> Iterator[World]:
    """Every pair is on the rung that its NATs allow, before and after."""
    until_as_before(built)
    yield built
    until_as_before(built)


def test_every_pair_needs_a_tunnel_as_the_lab_says_beforehand(world: World) -> None:
    wait_until(lambda: is_as_planned(world))


@pytest.mark.parametrize(("source", "target"), list(RUNGS))
def test_pods_of_different_sites_exchange_packets_of_every_size(
    world: World, source: str, target: str
) -> None:
    pod, other = the_pod(world.machine(source)), the_pod(world.machine(target))
    with echoing(other.netns):
        for address in other.addresses:
            largest = TUNNEL_MTU_BYTES - UDP_HEADERS[address.version]
            assert echo(pod.netns, "tcp", address.ip, 1 << 20) == "same"
            assert echo(pod.netns, "udp", address.ip, 64) == "same"
            assert echo(pod.netns, "udp", address.ip, largest, whole=True) == "same"
            assert echo(pod.netns, "udp", address.ip, 8000) == "same"
            assert pod.reaches(address.ip)


@pytest.mark.parametrize(
    ("source", "target", "rung"),
    [("crane-1", "digger-1", "tunnel"), ("digger-1", "radio-1", "relay")],
)
def test_policies_hold_in_tunnels_and_by_way_of_a_relay(
    world: World, source: str, target: str, rung: str
) -> None:
    until_on(world, source, target, rung)
    policies_hold(world.machine(source), world.machine(target))


def test_nodes_say_how_they_are_mapped(world: World) -> None:
    kinds = {
        name: world.machine(name).ask("status")["cluster"]["nat_traversal"]["relays"]["nat"]["ipv4"]
        for name in ("hub", "crane-1", "digger-1", "radio-1")
    }
    assert kinds == {
        "hub": "none",
        "crane-1": "same",
        "digger-1": "same",
        "radio-1": "symmetric",
    }


def test_tunnels_send_keepalives_only_where_a_nat_is_in_a_direct_way(world: World) -> None:
    machines = {name: world.machine(name) for name in ("hub", "buoy", "digger-1")}
    keys = {name: tunnel_key(world.machine(name)) for name in (*machines, "crane-1", "radio-1")}
    told = {name: keepalives(machine) for name, machine in machines.items()}

    assert told["hub"][keys["buoy"]] == told["buoy"][keys["hub"]] == 0
    assert told["digger-1"][keys["radio-1"]] == 0  # the relay's checks keep the NAT open
    assert told["digger-1"][keys["crane-1"]] == told["digger-1"][keys["hub"]] == KEEPALIVE_S
    assert told["hub"][keys["digger-1"]] == KEEPALIVE_S


def test_a_person_is_told_what_is_in_front_of_a_node_and_why_a_pair_is_on_a_relay(
    world: World,
) -> None:
    radio, digger = world.machine("radio-1"), world.machine("digger-1")
    ends = the_pod(radio).name, str(the_pod(digger).addresses[0].ip)

    assert "IPv4: behind a symmetric NAT" in limpet(radio, "status")
    assert has(limpet(radio, "peer", "list"), ("hub (203.0.113.11:", "buoy (198.51.100.11:"))
    probed = limpet(radio, "path", *ends, "--probe")
    assert "does not answer directly (tried: " in probed
    assert "this node's NAT is symmetric" in probed


def test_doctor_on_a_relay_names_the_rule_that_closes_it_and_is_content_without(
    world: World,
) -> None:
    hub = world.machine("hub")
    across = ("pods' packets", "UDP port", "TCP port", "not known")
    port = hub.ask("status")["cluster"]["tunnel"]["port"]

    def complaints() -> list[str]:
        found = doctor(hub)
        return [what for level in ("warn", "error") for what in found[level] if has(what, across)]

    assert complaints() == []
    hook = "{ type filter hook input priority 10; }"
    hub.run("nft", f"add table inet site; add chain inet site base {hook}")
    try:
        # Doctor's own packets, which never leave the copy: the world goes on beside it.
        hub.run("nft", f"add rule inet site base udp sport 40000 udp dport {port} drop")
        (found,) = complaints()
    finally:
        hub.run("nft", "delete table inet site")
    assert f"chain inet site base drops what is sent to UDP port {port}: rule" in found


def test_doctor_is_content_behind_a_nat_and_names_a_missing_tunnel_as_what_is_the_cause(
    world: World,
) -> None:
    """Nothing of the lab's own is a finding, and no relay is asked for that would not help."""
    node = world.machine("digger-1")
    healthy = doctor(node)
    assert healthy["warn"] == healthy["error"] == []

    program = node.settings["tunnel_program"]
    node.settings["tunnel_program"] = "/nonexistent/wireguard-go"
    node.stop_agent()
    end_tunnel(node.name)
    node.start_agent()
    try:
        found = doctor(node)
    finally:
        node.settings["tunnel_program"] = program
        node.stop_agent()
        node.start_agent()
    if kernel_has_wireguard():
        assert found["error"] == []  # no program is needed
        return
    (cause,) = found["error"]
    assert "there is no encrypted tunnel" in cause
    assert "install the package wireguard-go" in cause
    assert not [what for what in found["warn"] if "relay" in what]


def load_told(told: dict[str, Any], name: str) -> RelayLoad:
    """Of that relay, by what its node or the controller gives the page to show."""
    seen = convert(told, Picture)
    uid = next(each.uid for each in seen.nodes if each.name == name)
    return next(each.load for each in seen.relays if each.uid == uid)


def test_the_page_shows_how_much_a_relay_carries_there_and_in_the_cloud(world: World) -> None:
    digger, radio, hub = (world.machine(name) for name in ("digger-1", "radio-1", NEAR))
    until_both_use(world, "digger-1", "radio-1", NEAR)
    shortest_s, longest_s = AVERAGED_S
    wait_until(lambda: relaying_s(hub) > longest_s, patience_s=PATIENCE_S + longest_s)
    before = load_told(hub.ask("picture"), NEAR)
    assert before.bytes_per_s is not None

    megabytes = 8
    with echoing(the_pod(digger).netns):
        address = the_pod(digger).addresses[0].ip
        for _ in range(megabytes):
            assert echo(the_pod(radio).netns, "tcp", address, 1 << 20) == "same"

    # There and back; with headers, of the tunnel too, and acknowledgements it is 1.13 times that.
    carried_bytes = 2 * megabytes << 20
    least = carried_bytes / longest_s
    most = 1.4 * carried_bytes / shortest_s + before.bytes_per_s

    def is_told(load: RelayLoad) -> bool:
        return load.bytes_per_s is not None and least <= load.bytes_per_s <= most

    wait_until(lambda: is_told(load_told(hub.ask("picture"), NEAR)), f"{least} to {most} bytes/s")
    tell(f"{carried_bytes} bytes relayed: {load_told(hub.ask('picture'), NEAR).bytes_per_s} B/s")
    own = load_told(hub.ask("picture"), NEAR)
    assert own.pairs
    assert own.most_pairs
    assert load_told(digger.ask("picture"), NEAR) == RelayLoad(), "only the relay itself knows"
    # A controller that starts anew is told at once.
    world.controller.stop()
    world.start_controller()
    wait_until(lambda: is_told(load_told(world.controller.ask("picture"), NEAR)), "in the cloud")
    assert not is_told(load_told(world.controller.ask("picture"), FAR)), "which carries nothing"


def relaying_s(machine: Machine) -> float:
    """How long its agent has relayed."""
    return float(machine.ask("status")["cluster"]["nat_traversal"]["relaying"]["for_s"])


def has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def test_a_gateway_that_reboots_takes_nothing_away_for_long(world: World) -> None:
    world.cut("cloud")
    try:
        crane, digger = world.machine("crane-1"), world.machine("digger-1")
        before = peer(crane, "digger-1")["endpoint"]
        with Silence(the_pod(crane), the_pod(digger), within_s=WITHIN_S) as silence:
            began_s = time.time()
            world.gateway("quarry").reboot()
            silence.wait()
            tell(f"a gateway that reboots: {silence.longest_s(began_s):.2f} s of silence")
        all_reach(world, but=("hub",))
        until_on(world, "crane-1", "digger-1", "tunnel")
        wait_until(lambda: peer(crane, "digger-1")["endpoint"] != before)
        until_on(world, "digger-1", "radio-1", "relay")
    finally:
        world.restore("cloud")


def test_a_site_whose_public_address_changes_is_found_again_without_the_cloud(
    world: World,
) -> None:
    world.cut("cloud")
    try:
        for site in ("harbour", "mast"):
            began_s = time.monotonic()
            world.gateway(site).change_public_address()
            all_reach(world, but=("hub",))
            tell(f"another public address of {site}: {time.monotonic() - began_s:.2f} s")
        until_on(world, "crane-1", "digger-1", "tunnel")
    finally:
        world.restore("cloud")


def test_a_node_that_reboots_while_it_is_cut_off_has_its_tunnels_again(world: World) -> None:
    world.cut("cloud")
    try:
        digger = world.machine("digger-1")
        pods = [pod.addresses for pod in digger.pods.values()]
        digger.set_clock("1970-01-01 00:00:00")
        world.reboot([digger])
        began_s = time.monotonic()
        all_reach(world, but=("hub",))
        tell(f"a node that rebooted in 1970: {time.monotonic() - began_s:.2f} s")
        assert [pod.addresses for pod in digger.pods.values()] == pods

    finally:
        world.restore("cloud")
        digger.set_clock(None)


def until_both_use(world: World, one: str, other: str, relay: str) -> float:
    """Seconds until that relay carries both directions. Raises: AssertionError."""
    began_s = time.monotonic()
    here, there = world.machine(one), world.machine(other)
    wait_until(
        lambda: peer(here, other)["relay"] == peer(there, one)["relay"] == relay,
    )
    return time.monotonic() - began_s


def relays_of(machine: Machine) -> dict[str, float]:
    """Round trips in ms to relays that answer."""
    relays = machine.ask("status")["cluster"]["nat_traversal"]["relays"]["relays"]
    return {each["name"]: each["rtt_ms"] for each in relays if each["answers"]}


def test_of_two_relays_the_nearer_one_carries_a_pair_and_the_other_one_while_it_is_away(
    world: World,
) -> None:
    digger, radio = world.machine("digger-1"), world.machine("radio-1")
    until_both_use(world, "digger-1", "radio-1", NEAR)
    assert relays_of(digger)[FAR] >= 80
    with Silence(the_pod(digger), the_pod(radio), within_s=WITHIN_S) as silence:
        began_s = time.time()
        world.machine(NEAR).power_off()
        until_both_use(world, "digger-1", "radio-1", FAR)
        silence.wait()
        tell(f"the nearer relay dies: {silence.longest_s(began_s):.2f} s of silence")
        wait_until(lambda: NEAR not in relays_of(digger))

        began_s = time.time()
        world.machine(NEAR).power_on()
        took_s = until_both_use(world, "digger-1", "radio-1", NEAR)
        silence.wait()
        tell(
            f"it is back: used after {took_s:.1f} s, {silence.longest_s(began_s):.2f} s of silence"
        )

        for relay in (NEAR, FAR):
            world.machine(relay).power_off()
        wait_until(lambda: silence.longest_s(time.time() - 1) >= 1)
        all_reach(world, but=("hub", "buoy", "radio-1"))
        for relay in (NEAR, FAR):
            world.machine(relay).power_on()
        silence.wait()


def test_an_agent_that_restarts_loses_no_session(world: World) -> None:
    digger, crane = world.machine("digger-1"), world.machine("crane-1")
    with Silence(the_pod(crane), the_pod(digger), within_s=WITHIN_S) as silence:
        began_s = time.time()
        crane.stop_agent(signal.SIGKILL)
        crane.start_agent()
        digger.stop_agent()
        digger.start_agent()
        silence.wait()
        tell(f"agents restart: {silence.longest_s(began_s):.2f} s of silence")
    assert set(rung(world, "crane-1", "digger-1")) <= {"tunnel"}


def test_where_udp_is_blocked_under_traffic_tls_carries_it_until_udp_is_back(
    world: World,
) -> None:
    digger, crane = world.machine("digger-1"), world.machine("crane-1")
    # The only relay is then a node that is to be reached itself.
    world.machine("buoy").power_off()
    with Silence(the_pod(crane), the_pod(digger), within_s=WITHIN_S) as silence:
        began_s = time.time()
        world.gateway("quarry").block_udp()
        try:
            silence.wait()
            tell(f"UDP is blocked: {silence.longest_s(began_s):.2f} s of silence")
            until_on(world, "digger-1", "crane-1", "relay-tls", "relay")
            assert rung(world, "digger-1", "crane-1")[0] == "relay-tls"
            for ends in ((digger, crane), (crane, digger)):
                policies_hold(*ends)
            all_reach(world, but=("buoy",))
            until_on(world, "digger-1", "hub", "relay-tls")
            pod = the_pod(crane)
            with echoing(the_pod(digger).netns):
                for address in the_pod(digger).addresses:
                    assert echo(pod.netns, "tcp", address.ip, 1 << 20) == "same"
        finally:
            world.gateway("quarry").allow_udp()
            world.machine("buoy").power_on()
        until_on(world, "crane-1", "digger-1", "tunnel")
        silence.wait()


def test_a_site_in_no_shared_community_gets_nothing_in_also_with_forged_sources(
    world: World,
) -> None:
    crane, digger, radio = (world.machine(name) for name in ("crane-1", "digger-1", "radio-1"))
    command = world.controller.command
    command("community", "create", "works", "crane-1", "digger-1")
    command("community", "create", "wireless", "radio-1")
    try:
        wait_until(lambda: peer(digger, "radio-1")["state"] == "apart")
        wait_until(lambda: peer(radio, "digger-1")["state"] == "apart")
        until_on(world, "crane-1", "digger-1", "tunnel")
        all_reach(world, but=("radio-1", "buoy"))
        all_reach(world, but=("crane-1", "digger-1", "buoy"))
        assert tunnel_key(radio) not in tunnel_peers(digger)
        assert tunnel_key(digger) not in tunnel_peers(radio)
        for address in the_pod(digger).addresses:
            assert not the_pod(radio).reaches(address.ip, within_s=1)

        # By the tunnel of a peer that is let in only that peer's own sources come out.
        with hearing(the_pod(digger)) as heard:
            for source in (the_pod(radio), the_pod(crane)):
                send_by_tunnel(crane, the_pod(digger), source)
            assert heard.stdout is not None
            assert heard.stdout.readline() == f"from {the_pod(crane).name}\n"
    finally:
        for community in ("works", "wireless"):
            command("community", "remove", community, "--all")


def test_a_relay_sees_only_ciphertext_and_cannot_read_what_it_forwards(world: World) -> None:
    digger, radio = world.machine("digger-1"), world.machine("radio-1")
    with ExitStack() as relays, echoing(the_pod(radio).netns):
        seen = [relays.enter_context(capturing(world.machine(name))) for name in ("hub", "buoy")]
        for address in the_pod(radio).addresses:
            say_in_secret(the_pod(digger), address.ip)
    packets = [packet for each in seen for packet in each]
    # Each of 20, both ways, came to a relay and left it, for each IP version.
    assert sum(len(packet) > len(SECRET) for packet in packets) >= 2 * 2 * 2 * 20
    addresses = [
        each.ip.packed for pod in (the_pod(digger), the_pod(radio)) for each in pod.addresses
    ]
    assert not any(SECRET.encode()[:30] in packet for packet in packets)
    assert not any(address in packet for packet in packets for address in addresses)


def test_a_node_that_was_removed_loses_its_tunnels_on_who_heard_of_it_from_others(
    built: World,
) -> None:
    crane, digger = built.machine("crane-1"), built.machine("digger-1")
    lost = tunnel_key(crane)
    assert lost in tunnel_peers(digger)
    # The quarry hears of nothing but its neighbours: the controller's port is closed to it.
    digger.run("ip", "route", "add", "blackhole", "203.0.113.10/32")
    try:
        built.controller.command("node", "remove", "crane-1")

        wait_until(lambda: lost not in tunnel_peers(digger))

        assert peer(digger, "crane-1").get("state") != "reached"
        pod = the_pod(digger)
        for address in the_pod(crane).addresses:
            assert not pod.reaches(address.ip, within_s=1)
    finally:
        digger.run("ip", "route", "del", "blackhole", "203.0.113.10/32")
