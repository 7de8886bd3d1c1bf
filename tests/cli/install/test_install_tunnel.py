"""The userspace WireGuard of an installed node: it outlives the agent, and ends with Limpet."""

from __future__ import annotations

import json

from tests.beds.tunnel_bed import wireguard_go
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import CONFIG, LIMPET, assert_unchanged, limpet, state_of
from tests.cli.install.test_install_join import CONTROLLER, Cloud, joining
from tests.clients.machine import OUTSIDE, Process
from tests.waiting import wait_until

FAR = "198.51.100.1"


def add_far_node(cloud: Cloud, **more: object) -> Process:
    """A node of another site: it tells an address that is in no subnet of the machine. `more`:
    settings of its agent."""
    machine, here = cloud.machine, "/tmp/far"
    machine.run("ip", "link", "add", "far0", "type", "veth", "peer", "name", "far1", netns=OUTSIDE)
    machine.run("ip", "addr", "add", f"{FAR}/24", "dev", "far0", netns=OUTSIDE)
    for link in ("far0", "far1"):
        machine.run("ip", "link", "set", link, "up", netns=OUTSIDE)
    settings = {
        **{f"{each}_dir": f"{here}/{each}" for each in ("state", "data", "run")},
        "socket": f"{here}/agent.sock",
        "underlay_links": ["far0"],
        # Names of devices are unique in a mount namespace, where their programs' sockets are.
        "tunnel_ifname": "limwg9",
        "tunnel_program": wireguard_go(),
        **more,
    }
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
    machine.write(f"{here}/agent.toml", "".join(lines))
    config = ("--config", f"{here}/agent.toml")
    join = ("join", "--token", cloud.token(), "--controller", CONTROLLER, "--name", "far")
    machine.run(*LIMPET, *join, *config, netns=OUTSIDE)
    agent = machine.start(*LIMPET, "agent", *config, netns=OUTSIDE)
    wait_until(machine.path(f"{here}/agent.sock").exists, "the far node is ready")
    return agent


def programs(machine: ServiceMachine, ifname: str = "limwg0") -> list[str]:
    """Process ids of those that serve the tunnel."""
    return machine.try_run("pgrep", "-f", f"wireguard-go -f {ifname}").stdout.split()


def has_tunnel(machine: ServiceMachine) -> bool:
    said = machine.try_run(*LIMPET, "status", "--output", "json").stdout
    return bool(said) and json.loads(said)["cluster"]["tunnel"]["backend"] == "userspace"


def give_tun(machine: ServiceMachine) -> None:
    """The device that programs of tunnels make theirs with."""
    machine.run("sh", "-c", "mkdir -p /dev/net; [ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200")


def test_the_program_outlives_the_agent_and_ends_when_limpet_is_uninstalled(
    machine: ServiceMachine,
) -> None:
    give_tun(machine)
    machine.write(CONFIG, f"tunnel_program = {json.dumps(wireguard_go())}\n")
    before = state_of(machine)
    cloud = Cloud(machine).start()
    far = add_far_node(cloud)
    said = limpet(machine, "install", *joining(cloud))
    assert f"this kernel has no WireGuard; {wireguard_go()} 0." in said
    wait_until(lambda: has_tunnel(machine), "there is a tunnel")
    (pid,) = programs(machine)

    machine.run("systemctl", "restart", "limpet-agent")

    wait_until(lambda: has_tunnel(machine), "the tunnel was found again")
    assert programs(machine) == [pid]

    far.kill()
    machine.run("kill", *programs(machine, "limwg9"))
    wait_until(lambda: not programs(machine, "limwg9"), "the far node has ended")
    limpet(machine, "uninstall", "--purge")

    assert programs(machine) == []
    assert_unchanged(before, machine)
