"""A real YurtHub between an agent and its API server: what it keeps, the agent finds while cut off.

The agent's own disk comes before the cache; so what is told by the cache alone is asked of an
agent that has lost what it knew.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.command import LabError
from tests.kube.edge.yurthub_bed import TOKEN, URL, YurtHub, YurtNode, agents_token
from tests.kube.flannel.flannel_bed import beside_world
from tests.kube.flannel.flannel_move_bed import MOVER, MovingWorld
from tests.waiting import wait_until

BACKEND_DATA = "flannel.alpha.coreos.com/backend-data"
_TOPOLOGY = """
disk_mib = 0
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
nodes = { hub = 0 }
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { mover = 0 }
"""


@pytest.fixture(scope="module", name="world")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MovingWorld]:
    with beside_world(_TOPOLOGY, tmp_path_factory.mktemp("yurt"), MovingWorld) as world:
        yield world


def _known(world: MovingWorld) -> dict[str, list[str]]:
    """Addresses by name of the nodes that the mover's agent knows; empty while it says nothing."""
    with contextlib.suppress(LimpetError):
        return {each["name"]: each["addresses"] for each in world.mover.ask("peers")["peers"]}
    return {}


def _api_server(world: MovingWorld) -> dict[str, object]:
    with contextlib.suppress(LimpetError):
        found: dict[str, object] = world.mover.ask("status")["cluster"]["api_server"]
        return found
    return {"connected": False}


def _backend_data(node: str | dict[str, Any]) -> str:
    """Where a Node's VTEP is, as flannel writes it; empty where nobody has said."""
    found = json.loads(node) if isinstance(node, str) else node
    said: str = found.get("metadata", {}).get("annotations", {}).get(BACKEND_DATA, "")
    return said


def _is_kept(world: MovingWorld, yurthub: YurtHub, name: str, addresses: list[str]) -> bool:
    """Whether YurtHub has on its disk what was signed last for a node, and the network.

    What it has not is touched at the API server, since version 1.5 drops what it should save while
    it saves something else of that kind, and saves it with the next event alone. Source:
    pkg/yurthub/cachemanager/cache_manager.go, saveWatchObject and saveListObject.
    """
    kinds = {"clusternetworks": "default", "nodegrants": name, "nodepresences": name}
    missing: list[str] = []
    at: list[str] = []
    for kind, of in kinds.items():
        with contextlib.suppress(LabError):
            said = json.loads(world.plane.kubectl("get", f"{kind}.limpet.dev", of, "-o", "json"))
            at = said["spec"].get("addresses", at)
            kept = yurthub.kept("limpet", f"{kind}.v1alpha1.limpet.dev/{of}")
            if kept.get("spec") == said["spec"]:
                continue
            touched = f"example.org/touched={time.monotonic_ns()}"
            world.plane.kubectl("annotate", "--overwrite", f"{kind}.limpet.dev", of, touched)
        missing.append(kind)
    return not missing and at == addresses


def _flannels_answer(yurthub: YurtHub) -> str:
    """The VTEP of the node as the patched flannel reads it, with `get` on nodes; empty: not yet."""
    with contextlib.suppress(LabError):
        return _backend_data(yurthub.get(f"/api/v1/nodes/{MOVER}", agent="flanneld"))
    return ""


def _has_whole_cache(world: MovingWorld, yurthub: YurtHub) -> bool:
    """Whether YurtHub will start again; else it is mended, and has to be asked again."""
    if not yurthub.has_torn_kinds():
        return True
    world.mover.stop_agent()
    yurthub.daemon.stop()
    yurthub.forget_kinds()
    yurthub.start()
    world.mover.start_agent()
    wait_until(lambda: _api_server(world)["connected"])
    return False


def test_an_agent_that_is_cut_off_starts_from_its_disk_or_from_the_cache(
    world: MovingWorld,
) -> None:
    mover, plane = world.mover, world.plane
    world.add_limpet("hub", 1)
    hub = [str(each.ip) for each in world.machines["hub"].addresses]
    world.make_node(MOVER, ["10.244.102.0/24", "fd00:244:0:66::/64"])
    mover.system.write(TOKEN, agents_token(plane, MOVER))
    yurthub = YurtHub(YurtNode.of_mover(mover), plane)
    yurthub.prepare()
    yurthub.start()
    mover.settings |= {
        "source": "kubernetes",
        "kubernetes_server": URL,
        "kubernetes_token_file": TOKEN,
    }
    world.enroll(mover)
    try:
        wait_until(lambda: _api_server(world)["connected"])
        # The agent is told by the controller too: what it knows says nothing of the cache.
        wait_until(lambda: _is_kept(world, yurthub, "hub", hub))
        wait_until(lambda: _has_whole_cache(world, yurthub))
        wait_until(lambda: _is_kept(world, yurthub, "hub", hub))
        wait_until(lambda: _known(world).get("hub") == hub)
        # What the node says of itself gets through the cache.
        wait_until(lambda: MOVER in plane.kubectl("get", "nodepresences.limpet.dev", "-o", "name"))
        # The controller says by its Node where its VTEP is.
        wait_until(lambda: _backend_data(plane.kubectl("get", "node", MOVER, "-o", "json")))
        said = _backend_data(plane.kubectl("get", "node", MOVER, "-o", "json"))
        wait_until(lambda: _flannels_answer(yurthub) == said)
        wait_until(
            lambda: _backend_data(yurthub.kept("flanneld", f"nodes.v1.core/{MOVER}")) == said
        )

        # Cut off, with neither cache nor cloud: from the disk.
        world.cut("harbour")
        mover.stop_agent()
        yurthub.daemon.stop()
        mover.start_agent()
        assert _known(world) == {"hub": hub}

        # What it knew of others is lost, and the cache alone is left, started anew too.
        mover.stop_agent()
        (mover.disk / "state" / "cluster" / "snapshot.log").unlink()
        mover.start_agent()
        assert _known(world) == {}
        yurthub.start()
        wait_until(lambda: _known(world).get("hub") == hub)
        wait_until(lambda: _flannels_answer(yurthub) == said)

        # News come again.
        world.restore("harbour")
        world.machines["hub"].change_addresses()
        moved = [str(each.ip) for each in world.machines["hub"].addresses]
        assert moved != hub
        wait_until(lambda: _known(world).get("hub") == moved)
    finally:
        yurthub.daemon.kill()
