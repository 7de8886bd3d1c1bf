"""What gets out of sites that have not joined, and by which rungs nodes answer each other."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from limpet.base.decoding import convert
from limpet.lab.clock import LONG_AGO, clock_environment
from limpet.lab.command import LabError, run_command, side_by_side
from limpet.lab.launch import launcher
from limpet.lab.world.controller import LabController
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from limpet.picture.pair import Direction, PairDetail
from tests.lab.bed import limpet
from tests.lab.conftest import MakeWorld
from tests.lab.diagnosis import lacking_kernel
from tests.lab.rungs import CLIMBS_WITHIN_S
from tests.waiting import wait_until

TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
nodes = { hub = 1 }
relays = ["hub"]
[site.elsewhere]
lan = ["198.51.100.0/24"]
nodes = { buoy = 0 }
relays = ["buoy"]
[site.mast]
lan = ["192.168.30.0/24"]
nat = "symmetric"
nodes = { radio-1 = 1 }
[site.tower]
lan = ["192.168.30.0/24"]
nat = "symmetric"
nodes = { radio-2 = 1 }
[site.harbour]
lan = ["192.168.1.0/24"]
nat = "cone"
hairpin = true
nodes = { crane = 0 }
[site.quarry]
lan = ["192.168.1.0/24"]
nat = "port-restricted"
wan_mtu_bytes = 1400
nodes = { digger = 0 }
[site.yard]
lan = ["192.168.50.0/24", "fd00:50::/64"]
nodes = { gate = 0, bollard = 0 }
[site.dock]
lan = ["192.168.60.0/24", "fd00:60::/64"]
nodes = { winch = 0, capstan = 0 }
"""
STRANGERS = ("crane", "digger", "gate")
CONTROLLER, RELAYS = "203.0.113.10", ("203.0.113.11", "198.51.100.11")


@pytest.fixture(scope="module")
def world(make_world: MakeWorld, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three nodes have not joined: nothing of Limpet runs there."""
    file = tmp_path_factory.mktemp("topology") / "diagnosis.toml"
    file.write_text(TOPOLOGY)
    world = make_world(str(file))
    world.build()
    world.controller.start()
    members = [each for each in world.machines.values() if each.label not in STRANGERS]
    side_by_side(world.enroll, members)
    side_by_side(world._first_pods, members)
    for relay in RELAYS:
        wait_until(partial(is_heard, world, relay))
    return world


def is_heard(world: World, relay: str) -> bool:
    told = netcheck(world, "gate", "--relay", relay)
    return all(each["udp_ms"] is not None for each in told["observers"])


def netcheck(
    world: World,
    stranger: str,
    *words: str,
    environment: dict[str, str] | None = None,
    lack: str = "",
) -> dict[str, Any]:
    """What it prints, and its exit code as `exit`, of a machine without anything of Limpet's.

    `lack`: what its kernel lacks, of `lacking_kernel`."""
    machine = world.machine(stranger)
    settings = [f"{name}={value}" for name, value in (environment or {}).items()]
    kernel = (sys.executable, lacking_kernel.__file__, lack) if lack else ()
    command = ("env", *settings, *kernel, sys.executable, "-m", "limpet", "netcheck", *words)
    nothing = str(machine.config_path.with_name("nothing.toml"))
    Path(nothing).touch()
    done = launcher().run(
        [
            *("nsenter", f"--net={machine.netns_path}", *command),
            *("--no-port-mapping", "--config", nothing, "-o", "json"),
        ]
    )
    assert done.stderr == ""
    return {"exit": done.returncode, **json.loads(done.stdout)}


def fine(world: World, stranger: str, *words: str, **how: Any) -> dict[str, Any]:
    """The same, of one that finds no error: who answers has two seconds, and a loaded machine may
    not have answered by then."""
    asked: list[dict[str, Any]] = []

    def is_fine() -> bool:
        asked.append(netcheck(world, stranger, *words, **how))
        return bool(asked[-1]["exit"] == 0)

    wait_until(is_fine)
    return asked[-1]


def everybody() -> tuple[str, ...]:
    return (
        *("--controller", CONTROLLER),
        *(word for relay in RELAYS for word in ("--relay", relay)),
    )


def whats(told: dict[str, Any], level: str) -> list[str]:
    return [each["what"] for each in told["findings"] if each["level"] == level]


def test_behind_a_cone_all_see_one_endpoint_and_all_gets_out(world: World) -> None:
    told = fine(world, "crane", *everybody())

    assert told["nat"] == {"ipv4": "same"}
    (public,) = told["public"]
    assert public.split(":")[0] == str(world.gateway("harbour").public)
    assert all(each["tcp_problem"] == "" for each in told["observers"])
    assert max(each["packet_bytes"] or 0 for each in told["observers"]) == 1500
    assert told["hairpin"] is True
    assert abs(told["clock_ahead_s"]) < 60
    assert told["ipv6"] == ""
    assert told["lacks"] == []
    assert whats(told, "error") == []


def test_behind_a_symmetric_nat_each_sees_another_port(world: World) -> None:
    told = fine(world, "radio-1", *everybody())

    assert told["nat"] == {"ipv4": "symmetric"}
    assert len(told["public"]) == 3
    assert any("symmetric NAT" in what for what in whats(told, "warn"))


def test_the_size_that_gets_through_is_found_to_the_byte(world: World) -> None:
    told: dict[str, Any] = {}

    def is_found() -> bool:
        """A probe that a loaded machine answers late is taken for one that did not get through."""
        told.update(fine(world, "digger", *everybody()))
        return 1400 in [each["packet_bytes"] for each in told["observers"]]

    wait_until(is_found)
    assert [each["packet_bytes"] for each in told["observers"] if each["packet_bytes"]] == [1400]
    words = "packets of 1400 bytes get to the relay 198.51.100.11 whole over IPv4, so 1340 in"
    assert any(what.startswith(words) for what in whats(told, "ok"))
    assert told["hairpin"] is False


def test_without_nat_and_with_ipv6_both_are_said(world: World) -> None:
    controller = "[2001:db8:c::10]:7470"
    told = fine(world, "gate", "--controller", controller, "--relay", RELAYS[0])

    assert told["nat"] == {"ipv4": "none", "ipv6": "none"}
    assert told["ipv6"].startswith("fd00:50::")
    assert any(what.startswith("IPv6 works, from fd00:50:") for what in whats(told, "ok"))
    assert told["hairpin"] is None


def test_where_no_udp_gets_out_a_relay_in_tls_is_what_is_left(world: World) -> None:
    gateway = world.gateway("harbour")
    gateway.block_udp()
    try:
        told = fine(world, "crane", *everybody())
        assert told["nat"] == {"ipv4": "blocked"}
        (what,) = [each for each in told["findings"] if each["level"] == "warn"]
        assert what["what"] == (
            "UDP is answered by nobody: it is not let out of this site, or not in there"
        )
        assert "by a relay in TLS only" in what["why"]

        alone = netcheck(world, "crane", "--relay", f"{RELAYS[0]}/4433")
        assert alone["exit"] == 1
        assert whats(alone, "error") == [
            "UDP is answered by nobody, and no relay is reached in TLS"
        ]
    finally:
        gateway.allow_udp()


def test_a_controller_that_is_not_there_is_an_error_that_says_why(world: World) -> None:
    told = netcheck(world, "gate", "--controller", f"{CONTROLLER}:7479")

    assert told["exit"] == 1
    (what,) = whats(told, "error")
    assert "is not reached on TCP port 7479" in what
    assert what.endswith("Connection refused") or ": Connection refused" in what
    unknown = netcheck(world, "gate", "--controller", "no-such-name.invalid")
    assert unknown["exit"] == 1
    assert "has no address" in whats(unknown, "error")[0]


def test_a_clock_that_is_wrong_is_told_by_the_controllers(world: World) -> None:
    environment = clock_environment(LONG_AGO, world.folder)

    told = fine(
        world, "gate", "--controller", CONTROLLER, "--relay", RELAYS[0], environment=environment
    )

    assert told["clock_ahead_s"] < -365 * 86400
    assert any("the clock of this machine is" in what for what in whats(told, "warn"))


LACKS = {
    "packet": [
        (
            "this machine lacks packet sockets: open a packet socket: EAFNOSUPPORT",
            "it is for gratuitous ARP",
            "a kernel or package with CONFIG_PACKET",
        ),
    ],
    "netfilter": [
        (
            "this machine lacks nftables with NAT: open a netlink socket: EPROTONOSUPPORT",
            "it is for masquerade and hostPorts",
            "CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET",
        ),
        (
            "this machine lacks nftables where a link's packets come in: "
            "open a netlink socket: EPROTONOSUPPORT",
            "it is for refusing what is no peer's",
            "a kernel or package with CONFIG_NETFILTER_INGRESS, CONFIG_NF_TABLES_NETDEV",
        ),
        (
            "this machine lacks connection tracking by netlink: "
            "open a netlink socket: EPROTONOSUPPORT",
            "it is for addresses that are used again",
            "a kernel or package with CONFIG_NF_CT_NETLINK",
        ),
    ],
}
"""What is said, why it matters and what mends it, by what the kernel lacks."""


@pytest.mark.parametrize("lack", LACKS)
def test_what_the_kernel_lacks_is_an_error_with_its_mend_and_all_else_is_told_too(
    world: World, lack: str
) -> None:
    whole = fine(world, "gate", *everybody())
    told: dict[str, Any] = {}

    def is_all_that_fails() -> bool:
        """Who answers has two seconds, and a loaded machine may not have answered by then."""
        told.update(netcheck(world, "gate", *everybody(), lack=lack))
        return len(whats(told, "error")) == len(LACKS[lack])

    wait_until(is_all_that_fails)
    assert told["exit"] == 1
    errors = [each for each in told["findings"] if each["level"] == "error"]
    for finding, (what, why, mend) in zip(errors, LACKS[lack], strict=True):
        assert (finding["what"], finding["why"]) == (what, why)
        assert mend in finding["advice"]
    assert "the kernel has all that pods need" in str(whats(whole, "ok"))
    assert "the kernel has all that pods need" not in str(whats(told, "ok"))
    assert [each["address"] for each in told["observers"]] == [
        each["address"] for each in whole["observers"]
    ]


def test_in_words_it_reads_as_it_does_for_a_program(world: World) -> None:
    command = (sys.executable, "-m", "limpet", "netcheck", *everybody(), "--no-port-mapping")
    said: list[str] = []

    def is_fine() -> bool:
        """Who answers has two seconds, and a loaded machine may not have answered by then."""
        with suppress(LabError):
            said.append(run_command(*command, netns=world.machine("gate").name))
        return bool(said)

    wait_until(is_fine)
    (text,) = said
    assert "controller 203.0.113.10  203.0.113.10" in text
    assert "ok     IPv4: no NAT: others see this machine's own address" in text


def test_a_node_that_is_no_relay_tells_strangers_nothing(world: World) -> None:
    radio = str(world.machine("radio-1").addresses[0].ip)
    told = netcheck(world, "radio-1", "--relay", radio)

    (observer,) = told["observers"]
    assert observer["udp_ms"] is None


# A pair on a relay, as its detail says it


def sides(world: World, asked: Machine | LabController, *names: str) -> list[Direction]:
    """Of the pair's two directions those that were told, the one from the first name first."""
    one, other = (str(world.machine(name).ask("picture")["viewer"]["uid"]) for name in names)
    detail = convert(asked.ask("pair", one=one, other=other), PairDetail)
    both = (detail.there, detail.back) if one < other else (detail.back, detail.there)
    return [each for each in both if each is not None]


def says_why(side: Direction) -> bool:
    """A node finds out in a while that its NAT is symmetric, and its peer after it."""
    found_out = side.nat == "symmetric" and "its NAT does so too" in side.why_not_direct
    return side.way.rung == "relay" and found_out


def until_it_says_why(world: World, asked: Machine, name: str, other: str) -> Direction:
    """Raises: AssertionError with what it says instead."""
    seen: list[Direction] = []

    def holds() -> bool:
        seen[:] = sides(world, asked, name, other)[:1]
        return says_why(seen[0])

    try:
        wait_until(holds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {name} says {seen} of {other}") from error
    return seen[0]


def test_a_pair_on_a_relay_says_why_and_what_would_mend_it_and_which_nats_there_are(
    world: World,
) -> None:
    pair = ("radio-1", "radio-2")
    for name in pair:
        machine, other = world.machine(name), next(each for each in pair if each != name)
        here = until_it_says_why(world, machine, name, other)
        assert "this node's NAT shows each other node another port" in here.why_not_direct
        assert here.mend[0].startswith("forward the UDP port of either node's tunnel")

    def both_told() -> list[Direction]:
        told = sides(world, world.controller, *pair)
        return told if len(told) == 2 and all(map(says_why, told)) else []

    for side in wait_until(both_told):
        assert "this node's NAT shows each other node another port" in side.why_not_direct
        assert side.mend[0].startswith("forward the UDP port of either node's tunnel")


# Ping


def ping(world: World, name: str, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(limpet(world.machine(name), "ping", *words, "-o", "json"))
    return found


def by_rung(pinged: dict[str, Any], rung: str) -> list[dict[str, Any]]:
    return [each for each in pinged["summary"] if each["rung"] == rung]


def is_used(pinged: dict[str, Any], rung: str) -> bool:
    """The pair is on that rung, and what it stands on was answered."""
    answers = [each for each in by_rung(pinged, rung) if each["in_use"] and each["answered"]]
    return bool(pinged["rung"] == rung and answers)


def until_used(world: World, name: str, other: str, rung: str) -> dict[str, Any]:
    """What ping says then."""
    asked: list[dict[str, Any]] = []

    def used() -> bool:
        with suppress(LabError):  # nobody has answered
            asked.append(ping(world, name, other, "-c", "1"))
            return is_used(asked[-1], rung)
        return False

    wait_until(used, f"{name} - {other} on {rung}", patience_s=CLIMBS_WITHIN_S)
    return asked[-1]


@pytest.mark.parametrize(
    ("name", "other", "rung"),
    [("winch", "capstan", "route"), ("winch", "bollard", "vxlan"), ("radio-1", "hub", "tunnel")],
)
def test_the_rung_that_a_pair_is_on_is_named_with_its_answers(
    world: World, name: str, other: str, rung: str
) -> None:
    pinged = until_used(world, name, other, rung)

    assert (pinged["node"], pinged["direct"], pinged["answered"]) == (other, True, True)


def test_where_the_gateway_lets_no_udp_out_answers_come_by_the_relay_over_tls(
    world: World,
) -> None:
    until_used(world, "radio-1", "radio-2", "relay")
    gateway = world.gateway("mast")
    gateway.block_udp()
    try:
        pinged = until_used(world, "radio-1", "radio-2", "relay-tls")
    finally:
        gateway.allow_udp()

    assert (pinged["direct"], pinged["answered"]) == (False, True)
    assert {each["by"] for each in by_rung(pinged, "relay-tls")} <= {"hub", "buoy"}
    until_used(world, "radio-1", "radio-2", "relay")


def test_two_symmetric_sites_answer_by_the_relays_and_packets_get_through(world: World) -> None:
    wait_until(lambda: ping(world, "radio-1", "radio-2", "-c", "1")["rung"] == "relay")

    pinged = ping(world, "radio-1", "radio-2", "-c", "3", "-i", "0.1")

    assert (pinged["node"], pinged["direct"], pinged["answered"]) == ("radio-2", False, True)
    assert {each["by"] for each in by_rung(pinged, "relay")} == {"hub", "buoy"}
    assert any(each["in_use"] and each["answered"] for each in by_rung(pinged, "relay"))
    assert all(each["answered"] for each in by_rung(pinged, "packet"))
    assert [len(each["packets"]) for each in pinged["rounds"]] == [2, 2, 2]


def test_a_pod_is_pinged_by_name_and_its_node_by_the_ways_to_it(world: World) -> None:
    text = limpet(world.machine("radio-1"), "ping", "hub-pod-0", "-c", "2", "-i", "0.1")

    first, second = text.splitlines()[:2]
    assert first.startswith("1  default/hub-pod-0 on hub: ")
    assert second.startswith("2  default/hub-pod-0 on hub: ")
    assert " *" in first
    assert "packet to 10.244." in first


def test_without_a_count_it_goes_on_until_it_is_interrupted_and_sums_up(world: World) -> None:
    machine = world.machine("radio-1")
    words = ("ping", "hub", "-i", "0.1", "--config", str(machine.config_path))
    command = ("nsenter", f"--net=/run/netns/{machine.name}", sys.executable, "-m", "limpet")
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as pinging:
        assert pinging.stdout is not None
        lines = iter(pinging.stdout.readline, "")
        try:
            for number in range(1, 13):
                assert any(line.startswith(f"{number}  hub") for line in lines)
        finally:
            pinging.send_signal(signal.SIGINT)
            rest = pinging.stdout.read()
    assert pinging.returncode == 0
    counted = [int(each) for each in re.findall(r"(\d+)/\d+ +\d+ %", rest)]
    assert max(counted) >= 12


def test_until_direct_ends_at_once_where_no_relay_is_needed(world: World) -> None:
    wait_until(lambda: ping(world, "radio-1", "hub", "-c", "1")["direct"])

    pinged = ping(world, "radio-1", "hub", "--until-direct")

    assert (pinged["direct"], len(pinged["rounds"])) == (True, 1)


def test_what_stays_on_a_relay_is_exit_code_1_with_until_direct(world: World) -> None:
    machine = world.machine("radio-1")
    words = ("ping", "radio-2", "--until-direct", "-c", "1", "--config", str(machine.config_path))
    done = launcher().run(
        ["nsenter", f"--net={machine.netns_path}", sys.executable, "-m", "limpet", *words]
    )

    assert done.returncode == 1
    assert "the pair still needs a relay" in done.stderr


def test_a_node_whose_agent_ended_answers_packets_only_and_that_is_said(world: World) -> None:
    buoy = world.machine("buoy")
    wait_until(lambda: ping(world, "radio-1", "buoy", "-c", "1")["answered"])
    buoy.stop_agent()
    try:
        machine = world.machine("radio-1")
        words = ("ping", "buoy", "-c", "1", "--config", str(machine.config_path))
        done = launcher().run(
            ["nsenter", f"--net={machine.netns_path}", sys.executable, "-m", "limpet", *words]
        )
        assert done.returncode == 0
        assert "packets get through, and the agent of buoy does not answer" in done.stderr
    finally:
        buoy.start_agent()
