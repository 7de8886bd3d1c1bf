"""An agent behind a cache as KubeEdge's MetaServer is one: no bookmarks, lists from its disk while
the cloud is away, watches that begin with everything, writes that fail."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.command import LabError
from limpet.lab.kube.control_plane import ADMINISTRATORS
from tests.kube.edge.cache_bed import running_cache
from tests.kube.edge.metaserver import PORT
from tests.kube.flannel.flannel_bed import BesideWorld, beside_world
from tests.waiting import PATIENCE_S, wait_until

_TOPOLOGY = """
disk_mib = 0
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
nodes = { hub = 0 }
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { edge = 0 }
"""


@pytest.fixture(scope="module", name="world")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BesideWorld]:
    with beside_world(_TOPOLOGY, tmp_path_factory.mktemp("meta"), BesideWorld) as world:
        yield world


@contextlib.contextmanager
def _metaserver(world: BesideWorld) -> Iterator[None]:
    """On the node, with the rights of cloudcore."""
    plane, edge = world.plane, world.machines["edge"]
    user = plane.authority.issue("cloudcore", "cloudcore", groups=[ADMINISTRATORS])
    words = ("--certificate", str(user.certificate), "--key", str(user.key))
    with running_cache(edge, plane.url_inside, plane.authority.certificate, *words):
        yield


def _known(world: BesideWorld) -> dict[str, list[str]]:
    with contextlib.suppress(LimpetError):
        peers = world.machines["edge"].ask("peers")["peers"]
        return {each["name"]: each["addresses"] for each in peers}
    return {}


_LIST = """
import json, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=20) as answer:
    items = json.load(answer)["items"]
print(json.dumps({each["metadata"]["name"]: each["spec"].get("addresses") for each in items}))
"""


def _addresses_by_cache(world: BesideWorld) -> dict[str, list[str]]:
    """What the cache says of nodes, and keeps from now on: it keeps what it passes on."""
    edge = world.machines["edge"]
    found: dict[str, list[str]] = {}
    with contextlib.suppress(LabError):
        for kind in ("clusternetworks", "nodegrants", "nodepresences"):
            url = f"http://127.0.0.1:{PORT}/apis/limpet.dev/v1alpha1/{kind}"
            found = json.loads(edge.run(sys.executable, "-c", _LIST, url))
    return found


def test_an_agent_hears_and_writes_by_it_and_finds_there_what_its_disk_has_lost(
    world: BesideWorld,
) -> None:
    world.add_limpet("hub", 1)
    hub = [str(each.ip) for each in world.machines["hub"].addresses]
    edge = world.machines["edge"]
    edge.settings |= {"source": "kubernetes", "kubernetes_server": f"http://127.0.0.1:{PORT}"}
    names = ("get", "nodepresences.limpet.dev", "-o", "name")
    with _metaserver(world):
        world.make_node("edge", ["10.244.2.0/24", "fd00:244:0:2::/64"])
        world.enroll(edge)
        wait_until(lambda: _known(world).get("hub") == hub)
        wait_until(lambda: "edge" in world.plane.kubectl(*names))
        # The agent is told by the controller too: what it knows says nothing of the cache.
        wait_until(lambda: _addresses_by_cache(world).get("hub") == hub)

        # Cut off, without what it knew of others.
        world.cut("harbour")
        edge.stop_agent()
        (edge.disk / "state" / "cluster" / "snapshot.log").unlink()
        edge.start_agent()
        wait_until(lambda: _known(world).get("hub") == hub)

        # A write fails there, in words, and is made up for.
        edge.change_addresses()
        said = edge.ask("status")["cluster"]["api_server"]
        assert str(PORT) in said["server"]
        wait_until(
            lambda: "connection lost" in edge.ask("status")["cluster"]["api_server"]["refused"]
        )
        world.restore("harbour")
        world.machines["hub"].change_addresses()
        moved = [str(each.ip) for each in world.machines["hub"].addresses]
        wait_until(lambda: _known(world).get("hub") == moved)
        mine = str(edge.addresses[0].ip)
        shown = ("get", "nodepresences.limpet.dev", "edge", "-o", "jsonpath={.spec.addresses}")
        wait_until(lambda: mine in world.plane.kubectl(*shown), patience_s=2 * PATIENCE_S)
