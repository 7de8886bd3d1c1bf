"""A node hears its cluster by a real API server: what it takes, what it writes, what it ignores."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from limpet.base.settings import SourceSettings
from limpet.cloud.second_road.api_server import ApiServerSource, find_api_server
from limpet.cluster.documents import Document, Source
from limpet.kubernetes.kinds.resources import RESOURCES, document_object
from limpet.lab.command import LabError
from limpet.lab.kube.control_plane import ControlPlane
from tests.cloud.bed import Member, Running
from tests.controller.machines import Controller
from tests.kube.definitions import wait_until_served
from tests.waiting import until, until_answered

CRDS = Path(__file__).parents[2] / "deploy" / "crds"
MakeController = Callable[..., Controller]


@pytest.fixture
def plane(api: ControlPlane) -> ControlPlane:
    """With our definitions, and no object."""
    api.kubectl("apply", "--server-side", "-f", str(CRDS))
    for resource in RESOURCES.values():
        name = f"{resource.plural}.limpet.dev"
        wait_until_served(api, name)
        api.kubectl("delete", name, "--all")
    return api


class Listener:
    """A node without its controller: it knows what it joined with, and hears the API server."""

    def __init__(self, member: Member, kubeconfig: Path, boot_id: str = "boot") -> None:
        self.running = Running(member.folders, member.identity, lambda _grant: (), boot_id)
        self.membership = self.running.membership
        settings = SourceSettings(source="kubernetes", kubeconfig=kubeconfig)
        self.road = ApiServerSource(
            self.membership, lambda: find_api_server(settings), random=lambda: 0.0
        )
        self.membership.subscribe(self.road.hear)

    @property
    def uid(self) -> str:
        return self.membership.uid

    def documents(self, kind: str) -> list[Document]:
        return list(self.membership.replica.known.of(kind).values())


@asynccontextmanager
async def listening(*listeners: Listener) -> AsyncIterator[None]:
    for each in listeners:
        each.road.start()
    try:
        yield
    finally:
        for each in listeners:
            await each.road.stop()
            each.running.close()
        await asyncio.sleep(0)  # what was aborted ends


def object_of(document: Document, name: str) -> dict[str, Any]:
    return document_object(document, name, name)


async def put(plane: ControlPlane, *objects: dict[str, Any]) -> None:
    """As the controller's store would; by an administrator."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    words = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    await asyncio.to_thread(plane.kubectl, *words, stdin=text)


async def objects_of(plane: ControlPlane, plural: str) -> dict[str, Any]:
    text = await asyncio.to_thread(plane.kubectl, "get", f"{plural}.limpet.dev", "-o", "json")
    return {each["metadata"]["name"]: each for each in json.loads(text)["items"]}


async def presences_say(plane: ControlPlane, *addresses: str) -> None:
    """Returns when each of these is told by a NodePresence. Raises: TimeoutError."""

    async def they_do() -> bool:
        found = await objects_of(plane, "nodepresences")
        told = {one for each in found.values() for one in each["spec"].get("addresses", ())}
        return told.issuperset(addresses)

    await until_answered(they_do)


@pytest.fixture
def members(controller: Controller, tmp_path: Path) -> list[Member]:
    found = [Member(tmp_path / name, name) for name in ("one", "two")]
    for member in found:
        member.join(controller)
    return found


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def show(plane: ControlPlane, *listeners: Listener) -> None:
    """The network and the grants of all of them are objects."""
    network = object_of(listeners[0].documents("network")[0], "default")
    grants = [
        object_of(each.membership.replica.known.by_kind["grant"][each.uid], each.running.grant.name)
        for each in listeners
    ]
    await put(plane, network, *grants)


def test_two_nodes_hear_of_each_other_by_the_api_server_alone_and_lose_nothing_that_is_deleted(
    plane: ControlPlane, members: list[Member]
) -> None:
    async def work() -> None:
        one, two = (Listener(each, plane.kubeconfig) for each in members)
        one.running.announce("192.0.2.1")
        two.running.announce("192.0.2.2")
        async with listening(one, two):
            await until(lambda: "nodegrants" in one.road.state.error or one.road.state.connected)
            await show(plane, one, two)
            await until(lambda: one.running.addresses_of(two.uid) == ("192.0.2.2",))
            await until(lambda: two.running.addresses_of(one.uid) == ("192.0.2.1",))
            await until(lambda: one.road.state.connected)
            assert plane.url in one.road.state.server
            written = await objects_of(plane, "nodepresences")
            assert written["one"]["spec"]["addresses"] == ["192.0.2.1"]

            # A new address is written over the old one.
            two.running.announce("192.0.2.22")
            await until(lambda: one.running.addresses_of(two.uid) == ("192.0.2.22",))

            # By hand all of it is deleted: nobody is forgotten, and presences come back.
            for plural in ("nodegrants", "nodepresences", "clusternetworks"):
                await asyncio.to_thread(plane.kubectl, "delete", f"{plural}.limpet.dev", "--all")
            await presences_say(plane, "192.0.2.1", "192.0.2.22")
            assert one.running.addresses_of(two.uid) == ("192.0.2.22",)
            assert one.membership.is_member(two.uid)

    run(work())


def test_what_the_controller_says_of_a_node_in_its_objects_is_told_on_the_node(
    plane: ControlPlane, members: list[Member]
) -> None:
    def say(status: str) -> None:
        condition = {
            "type": "PodAddressesUnique",
            "status": status,
            "reason": "HeldTwice",
            "message": "two pods hold 10.0.0.9",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for name in ("one", "two"):
            plane.kubectl(
                *("patch", "nodepresences.limpet.dev", name, "--subresource=status"),
                *("--type=merge", "-p", json.dumps({"status": {"conditions": [condition]}})),
            )

    async def work() -> None:
        one, two = (Listener(each, plane.kubeconfig) for each in members)
        one.running.announce("192.0.2.1")
        two.running.announce("192.0.2.2")
        async with listening(one, two):
            await show(plane, one, two)
            await presences_say(plane, "192.0.2.1", "192.0.2.2")
            await asyncio.to_thread(say, "False")
            words = ("PodAddressesUnique: two pods hold 10.0.0.9",)
            await until(lambda: one.road.state.told == words)
            await asyncio.to_thread(say, "True")
            await until(lambda: one.road.state.told == ())

    run(work())


def test_what_is_forged_old_or_in_a_strange_place_counts_for_nothing_and_is_named(
    plane: ControlPlane, members: list[Member]
) -> None:
    async def work() -> None:
        one, two = (Listener(each, plane.kubeconfig) for each in members)
        two.running.announce("192.0.2.2")
        old = two.membership.replica.known.find(two.membership.introduction)
        two.running.announce("192.0.2.22")
        async with listening(one, two):
            await show(plane, one, two)
            await until(lambda: one.running.addresses_of(two.uid) == ("192.0.2.22",))
            assert old is not None
            forged = object_of(two.membership.replica.known.by_kind["grant"][two.uid], "two")
            body = bytearray(base64.b64decode(forged["document"]["body"]))
            body[-5] ^= 1
            forged["document"]["body"] = base64.b64encode(body).decode()
            forged["metadata"]["name"] = "two"
            await put(plane, forged)
            await until(lambda: any("NodeGrant two" in each for each in one.road.state.unusable))
            assert one.membership.is_member(two.uid)

            # An old presence is refused by the definition, and comes to nothing where it is not.
            with pytest.raises(LabError, match="an older presence would replace a newer one"):
                await put(plane, object_of(old, "two"))
            one.membership.offer([old.sealed], source=Source.CLOUD)
            assert one.running.addresses_of(two.uid) == ("192.0.2.22",)

    run(work())


def test_only_a_tombstone_removes(
    plane: ControlPlane, controller: Controller, members: list[Member]
) -> None:
    async def tombstone_of(uid: str) -> Document:
        """As the controller feeds it to another node."""
        async with members[1].running() as informed:
            await until(lambda: informed.membership.tombstone_of(uid) is not None)
            return informed.membership.replica.known.by_kind["grant"][uid]

    async def work() -> None:
        one = Listener(members[0], plane.kubeconfig)
        async with listening(one):
            await show(plane, one)
            await until(lambda: one.road.state.connected)
            await asyncio.to_thread(controller.ask, "node.remove", node="one")
            await put(plane, object_of(await tombstone_of(one.uid), "one"))
            await until(lambda: one.membership.removed)

    run(work())


def test_a_node_whose_disk_was_put_back_goes_on_above_what_it_said_before(
    plane: ControlPlane, members: list[Member]
) -> None:
    async def work() -> None:
        one = Listener(members[0], plane.kubeconfig)
        one.running.announce("192.0.2.1")
        snapshot = members[0].folder / "snapshot.log"
        kept = snapshot.read_bytes()
        one.running.announce("192.0.2.11")
        one.running.announce("192.0.2.12")
        async with listening(one):
            await show(plane, one)
            await presences_say(plane, "192.0.2.12")
            last = one.membership.presence
        snapshot.write_bytes(kept)

        again = Listener(members[0], plane.kubeconfig)
        again.running.announce("192.0.2.13")
        async with listening(again):
            await presences_say(plane, "192.0.2.13")
            now = again.membership.presence
            assert now is not None
            assert last is not None
            assert now.sequence > last.sequence

    run(work())


def test_a_kubeconfig_that_leads_nowhere_is_told_of_and_read_again(
    plane: ControlPlane, members: list[Member], tmp_path: Path
) -> None:
    async def work() -> None:
        path = tmp_path / "kubeconfig"
        one = Listener(members[0], path)
        async with listening(one):
            await until(lambda: f"read kubeconfig {path}: No such file" in one.road.state.error)
            assert not one.road.state.connected
            path.write_text(plane.kubeconfig.read_text())
            await until(lambda: one.road.state.connected)
            assert one.road.state.error == ""

    run(work())
