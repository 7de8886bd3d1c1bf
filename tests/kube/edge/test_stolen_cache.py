"""The cache of a node is stolen: the steps of docs/security.md, with a thief that answers the
node's agent from the copy that the cache had, changed."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.kube.programs import API_SERVER_PROGRAMS
from tests.kube.edge.cache_bed import running_cache
from tests.kube.edge.metaserver import PORT
from tests.kube.edge.yurthub_bed import agents_token
from tests.kube.flannel.flannel_bed import NAMESPACE, BesideWorld, beside_world
from tests.lab.thefts.thief import MOLE, OWN_KEY, grant_for_a_mole
from tests.waiting import wait_until

_TOPOLOGY = """
disk_mib = 0
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
nodes = { hub = 0 }
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { edge = 0 }
"""
_SEGMENTS = ["10.244.2.0/24", "fd00:244:0:2::/64"]
_NOWHERE = "https://127.0.0.1:1"
_PRESENCES, _GRANTS = (
    f"/apis/limpet.dev/v1alpha1/{each}" for each in ("nodepresences", "nodegrants")
)
_SERVICES, _SLICES = "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"
_TRUE, _FORGED = "default/till", "default/bank"
_THIEF = "192.0.2.66"


class CacheWorld(BesideWorld):
    """Nobody runs flannel."""

    programs: ClassVar[tuple[str, ...]] = API_SERVER_PROGRAMS

    def ask_as(self, token: str, path: str) -> tuple[int, Any]:
        """What the API server answers to whoever has that token."""
        request = urllib.request.Request(
            self.plane.url + path, headers={"Authorization": f"Bearer {token}"}
        )
        context = ssl.create_default_context(cafile=str(self.plane.authority.certificate))
        try:
            with urllib.request.urlopen(request, context=context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, None

    def known(self) -> dict[str, list[str]]:
        """Addresses of the nodes that the edge's agent knows; empty while it does not answer."""
        with contextlib.suppress(LimpetError):
            peers = self.machines["edge"].ask("peers")["peers"]
            return {each["name"]: each["addresses"] for each in peers}
        return {}

    def served(self) -> set[str]:
        """Services that `limpet service list` shows on the edge; none while it does not answer."""
        with contextlib.suppress(LimpetError):
            found = self.machines["edge"].ask("services")["services"]
            return {f"{each['namespace']}/{each['name']}" for each in found}
        return set()

    def make_service(self, name: str, address: str) -> None:
        service = _service(name, address)
        self.plane.kubectl("create", "-f", "-", stdin=json.dumps(service))


@pytest.fixture(scope="module", name="world")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheWorld]:
    with beside_world(_TOPOLOGY, tmp_path_factory.mktemp("stolen"), CacheWorld) as world:
        yield world


def _service(key: str, address: str) -> dict[str, Any]:
    namespace, name = key.split("/")
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": address, "ports": [{"name": "http", "port": 80}]},
    }


def _refused(world: CacheWorld) -> set[str]:
    """Kinds of documents that the edge's agent was told and that did not count, by its log."""
    said = world.machines["edge"].agent.log.read_text()
    return set(re.findall(r'event="what is said does not count".* kind=(\w+)', said))


def _forged(copy: dict[str, Any]) -> dict[str, Any]:
    """The copy with a Service of the thief's, a member that nobody has let in, and the hub at the
    thief's address."""
    (hub,) = (each for each in copy[_PRESENCES]["items"] if each["metadata"]["name"] == "hub")
    said = json.loads(base64.b64decode(hub["document"]["body"]))
    said |= {"addresses": [_THIEF], "sequence": said["sequence"] + 1}
    hub["document"]["body"] = base64.b64encode(json.dumps(said).encode()).decode()
    hub["spec"]["addresses"] = [_THIEF]
    mole = grant_for_a_mole(OWN_KEY, era=0)
    (grant, *_) = copy[_GRANTS]["items"]
    sealed = {
        "body": base64.b64encode(mole.sealed.body).decode(),
        "signature": base64.b64encode(mole.sealed.signature).decode(),
    }
    copy[_GRANTS]["items"].append(
        {
            **grant,
            "metadata": {**grant["metadata"], "name": MOLE},
            "document": {**grant["document"], **sealed},
        }
    )
    bank = _service(_FORGED, "10.96.0.66")
    bank["metadata"] |= {"uid": "1", "resourceVersion": "1"}
    copy[_SERVICES]["items"].append(bank)
    return copy


def test_a_stolen_cache_forges_no_member_and_is_shut_out_step_by_step(
    world: CacheWorld, tmp_path: Path
) -> None:
    plane, edge = world.plane, world.machines["edge"]
    authority = plane.authority.certificate
    world.add_limpet("hub", 1)
    hub = [str(each.ip) for each in world.machines["hub"].addresses]
    world.make_service(_TRUE, "10.96.0.7")
    edge.settings |= {
        "source": "kubernetes",
        "kubernetes_server": f"http://127.0.0.1:{PORT}",
        "services": "on",
        "log_level": "debug",
    }
    token = tmp_path / "token"
    token.write_text(agents_token(plane, "edge"))
    with running_cache(edge, plane.url_inside, authority, "--token", str(token)):
        world.make_node("edge", _SEGMENTS)
        world.enroll(edge)
        wait_until(lambda: world.known().get("hub") == hub, "it hears of the hub by its cache")
        wait_until(lambda: _TRUE in world.served(), "and of a Service")

    # The thief has the copy, and what the cache asks with.
    stolen = token.read_text()
    paths = (_PRESENCES, _GRANTS, "/apis/limpet.dev/v1alpha1/clusternetworks", _SERVICES, _SLICES)
    copy = {path: world.ask_as(stolen, path)[1] for path in paths}
    (file := tmp_path / "copy.json").write_text(json.dumps(_forged(copy)))
    with running_cache(edge, _NOWHERE, authority, "--copy", str(file)):
        wait_until(lambda: _FORGED in world.served(), "Services are what the thief says")
        edge.stop_agent()
        edge.start_agent()
        wait_until(lambda: _FORGED in world.served(), "after a restart too")
        wait_until(lambda: _refused(world) >= {"grant", "presence"}, "what it forged is refused")
        assert world.known() == {"hub": hub}, "members are not"

    # Step 1: what it asked with counts no more. Its Node comes back, and with it what it was.
    assert world.ask_as(stolen, _SERVICES)[0] == 200
    plane.kubectl("delete", "pod", "limpet-agent-edge", "-n", NAMESPACE, "--force")
    plane.kubectl("delete", "node", "edge")
    wait_until(lambda: world.ask_as(stolen, _SERVICES)[0] == 401, "the stolen token is nobody's")
    world.make_node("edge", _SEGMENTS)

    # Step 2: new credentials, and the agent restarted, which lists all of it anew.
    token.write_text(agents_token(plane, "edge"))
    edge.stop_agent()
    with running_cache(edge, plane.url_inside, authority, "--token", str(token)):
        edge.start_agent()
        listed = plane.kubectl("get", "services", "-A", "-o", "json")
        said = {
            f"{each['metadata']['namespace']}/{each['metadata']['name']}"
            for each in json.loads(listed)["items"]
        }
        wait_until(lambda: world.served() == said, "the forged one is gone, all others are there")
        assert world.known() == {"hub": hub}
        shown = edge.ask("status")["cluster"]
        assert shown["removed"] is False
        assert set(shown["segments"]) == set(_SEGMENTS)
        world.machines["hub"].change_addresses()
        moved = [str(each.ip) for each in world.machines["hub"].addresses]
        wait_until(lambda: world.known().get("hub") == moved, "what is new is heard again")
