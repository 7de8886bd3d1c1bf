"""The network underneath a world, with no process in it."""

from __future__ import annotations

import json
import subprocess
from ipaddress import ip_address
from pathlib import Path

import pytest

from limpet.datapath.tunnel.wireguard.process import WireguardProcess
from limpet.lab.command import LabError, run_command
from limpet.lab.measure.matrix import MeasuredEnd, measure_until
from limpet.lab.world.tunnels import tunnel_pid
from limpet.lab.world.wires import existing_namespaces
from limpet.lab.world.world import World
from limpet.linux.namespaces import Namespace
from tests.lab.conftest import MakeWorld
from tests.waiting import PATIENCE_S, wait_until


def await_end(pid: int) -> None:
    """What has ended has its number until its parent has heard of that."""
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "it has ended")


def lan_places(world: World) -> list[MeasuredEnd]:
    """Machines by their LAN addresses, and the cloud."""
    places = [
        MeasuredEnd(machine.label, machine.name, tuple(each.ip for each in machine.addresses))
        for machine in world.machines.values()
    ]
    cloud = tuple(each.ip for each in world.topology.controller_addresses)
    return [*places, MeasuredEnd("cloud", world.wires.cloud, cloud)]


@pytest.fixture(scope="module")
def bare(make_world: MakeWorld) -> World:
    world = make_world("three-sites")
    world.build()
    return world


def test_all_machines_and_the_cloud_reach_each_other_by_plain_routing(bare: World) -> None:
    assert measure_until(lan_places(bare), within_s=PATIENCE_S).failures == []


@pytest.mark.parametrize("link", ["cloud", "quarry"])
def test_a_cut_is_silence_until_it_is_restored(bare: World, link: str) -> None:
    places = lan_places(bare)
    inside = [
        place.name
        for place in places
        if link in (place.name, getattr(bare.machines.get(place.name), "site", bare).name)
    ]

    apart = frozenset(
        (one.name, other.name)
        for one in places
        for other in places
        if (one.name in inside) != (other.name in inside)
    )

    bare.cut(link)
    cut = measure_until(places, within_s=PATIENCE_S, apart=apart)
    said = subprocess.run(
        [
            *("nsenter", f"--net=/run/netns/{bare.machine('crane-1').name}", "ping", "-n"),
            *("-c", "1", "-W", "1", str(next(p for p in places if p.name in inside).addresses[0])),
        ],
        capture_output=True,
        text=True,
    ).stdout
    cuts = bare.wires.cuts()
    bare.restore(link)

    assert cuts == [link]
    assert (cut.failures, cut.trespasses) == ([], [])
    assert "nreachable" not in said
    assert "100% packet loss" in said
    assert bare.wires.cuts() == []
    assert measure_until(places, within_s=PATIENCE_S).failures == []


def test_what_is_not_cut_can_be_restored_too(bare: World) -> None:
    bare.restore("harbour")

    assert bare.wires.cuts() == []


def test_a_link_that_is_not_there_cannot_be_cut(bare: World) -> None:
    with pytest.raises(LabError, match=r"cut mars: neither `cloud` nor a site of this world"):
        bare.cut("mars")


def test_machines_that_change_addresses_never_meet_and_are_reached_again(bare: World) -> None:
    machines = bare.select("harbour")
    seen = {address for machine in machines for address in machine.addresses}

    for chosen in (machines, machines[:1], machines[1:], machines):
        bare.change_addresses(chosen)
        fresh = [address for machine in chosen for address in machine.addresses]
        assert seen.isdisjoint(fresh)
        seen.update(fresh)

    assert measure_until(lan_places(bare), within_s=PATIENCE_S).failures == []
    again = World.open(bare.folder)
    assert [m.addresses for m in again.select("harbour")] == [m.addresses for m in machines]


def test_a_machine_that_lost_power_comes_back_with_its_mac_and_address(bare: World) -> None:
    machine = bare.machine("digger-1")

    machine.power_off()
    assert machine.name not in existing_namespaces(bare.name)
    machine.create()

    assert machine.links()["eth0"]["address"] == machine.node.mac
    assert measure_until(lan_places(bare), within_s=PATIENCE_S).failures == []


def test_a_tunnel_s_process_outlives_the_agent_and_ends_with_the_node_s_power(bare: World) -> None:
    machine = bare.machine("crane-2")
    names = {str(each.settings["tunnel_ifname"]) for each in bare.machines.values()}
    machine.start_agent()
    process = WireguardProcess(
        str(machine.settings["tunnel_ifname"]),
        log=machine.folder / "tunnel.log",
        program=str(machine.settings["tunnel_program"]),
    )
    with Namespace(machine.netns_path) as namespace, namespace.entered():
        process.start()
    pid = tunnel_pid(machine.name)
    assert pid is not None

    machine.stop_agent()
    assert tunnel_pid(machine.name) == pid
    machine.power_off()

    assert tunnel_pid(machine.name) is None
    assert not process.socket_path.exists()
    await_end(pid)
    machine.create()
    again = World.open(bare.folder).machine("crane-2")
    assert again.settings["tunnel_ifname"] == process.ifname
    assert again.settings["tunnel_program"] == machine.settings["tunnel_program"]
    assert len(names) == len(bare.machines)
    assert max(map(len, names)) <= 15


def test_links_have_the_mtu_that_the_topology_says(bare: World) -> None:
    site = bare.topology.site("mast")
    assert site is not None
    shown = run_command("ip", "-j", "link", "show", "wan", netns=bare.wires.router(site))

    assert json.loads(shown)[0]["mtu"] == 1400
    assert bare.machine("radio-1").links()["eth0"]["mtu"] == 1500


def test_a_full_disk_takes_not_one_byte_and_has_room_again(bare: World) -> None:
    machine = bare.machine("digger-2")
    file = machine.disk / "file"

    machine.fill_disk()
    with pytest.raises(OSError, match="No space left"):
        file.write_bytes(b"one")
    machine.empty_disk()

    file.write_bytes(b"one")
    assert file.read_bytes() == b"one"


def test_the_machine_itself_has_none_of_the_devices(bare: World) -> None:
    own = {link["ifname"] for link in json.loads(run_command("ip", "-j", "link", "show"))}

    assert not own & {*bare.machines, "router", "wan", "lan", "cloud", "br0"}


def test_a_filtering_switch_passes_only_addresses_of_its_lan(make_world: MakeWorld) -> None:
    world = make_world("filtering-switch")
    world.build()
    one, other = world.machines.values()
    for address, route, via in zip(
        ("10.9.9.1/32", "fd99::1/128"), ("10.9.9.1", "fd99::1"), one.addresses, strict=True
    ):
        one.run("ip", "addr", "add", address, "dev", "lo")
        other.run("ip", "route", "add", route, "via", str(via.ip))
    strange = MeasuredEnd("strange", one.name, (ip_address("10.9.9.1"), ip_address("fd99::1")))

    apart = frozenset({(other.label, "strange"), ("cloud", "strange")})
    measured = measure_until([*lan_places(world), strange], within_s=PATIENCE_S, apart=apart)

    assert (measured.failures, measured.trespasses) == ([], [])


def test_nothing_is_left_of_a_world_that_went(make_world: MakeWorld) -> None:
    world = make_world("one-lan")
    world.build()
    world.machine("node-1").start_agent()
    pid = world.machine("node-1").agent_pid

    world.down()

    assert existing_namespaces(world.name) == []
    assert not world.folder.exists()
    assert str(world.folder) not in Path("/proc/self/mounts").read_text()
    assert not list(Path("/dev/shm").glob(f"*{world.name}*"))
    assert pid is not None
    await_end(pid)


def test_a_world_that_is_there_is_not_built_again(bare: World) -> None:
    with pytest.raises(LabError, match="some of it is here already"):
        World(bare.topology, bare.name, bare.folder).build()
