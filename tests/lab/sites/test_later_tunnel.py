"""A node that cannot have a tunnel when its agent starts, and can a little later."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from limpet.lab.world.tunnels import tunnel_pid
from tests.lab.bed import a_world
from tests.waiting import PATIENCE_S, wait_until

TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24"]
[site.lighthouse]
lan = ["198.51.100.0/24"]
nodes = { hub = 1 }
[site.harbour]
lan = ["192.168.10.0/24"]
nat = "cone"
nodes = { crane-1 = 1 }
"""


def test_peers_are_asked_by_the_port_of_a_tunnel_that_comes_after_the_start(
    tmp_path: Path,
) -> None:
    """Long before the agent looks at everything again."""
    with a_world(TOPOLOGY, tmp_path) as world:
        machine = world.machine("crane-1")
        pid = wait_until(lambda: tunnel_pid(machine.name), "it has a tunnel")
        (ifname,) = [name for name in machine.links() if name.startswith("limwg")]
        machine.stop_agent()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: ifname not in machine.links(), "its device ends with the program")
        machine.run("ip", "link", "add", ifname, "type", "bridge")
        machine.settings["resync_s"] = 10 * PATIENCE_S
        machine.start_agent()
        probes = machine.ask("status")["cluster"]["probes"]
        assert "answered_tunnel" not in probes

        machine.run("ip", "link", "delete", ifname)

        wait_until(
            lambda: machine.ask("status")["cluster"]["probes"].get("answered_tunnel", 0) > 3,
            "the peer answers probes by the tunnel's port",
        )
