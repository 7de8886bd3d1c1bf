"""Nonsense at the API server: each is told in words that say what to do, and what is known goes on.

Objects that are deleted or put back: test_lost_objects.py; of kubeconfigs: test_source.py and
test_controller_words.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from limpet.lab.command import LabError
from limpet.lab.kube.control_plane import ControlPlane
from tests.cloud.bed import Member
from tests.controller.machines import Controller
from tests.kube.definitions import wait_until_served
from tests.kube.faults.test_lost_objects import answer, document, held, lead
from tests.kube.test_source import Listener, listening
from tests.waiting import until, wait_until

CRDS = Path(__file__).parents[3] / "deploy" / "crds"
PLURALS = ("clusternetworks", "nodegrants", "nodepresences", "communities")
NAMESPACE = "limpet-system"


@pytest.fixture(scope="module", name="plane")
def _plane(api: ControlPlane) -> ControlPlane:
    define(api)
    api.kubectl("create", "namespace", NAMESPACE)
    return api


def define(plane: ControlPlane) -> None:
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    names = (f"{plural}.limpet.dev" for plural in PLURALS)
    wait_until_served(plane, *names)


@pytest.fixture(scope="module", name="controller")
def _controller(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Controller]:
    found = Controller(
        tmp_path_factory.mktemp("c"),
        store="kubernetes",
        kubeconfig=str(plane.kubeconfig),
        namespace=NAMESPACE,
        pod_cidrs=["10.0.0.0/16"],
    )
    lead(found)
    try:
        yield found
        assert "Traceback" not in found.log.read_text()
    finally:
        found.kill_if_it_runs()


@pytest.fixture(scope="module", name="members")
def _members(controller: Controller, tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    found = [Member(tmp_path_factory.mktemp(name), name) for name in ("one", "two")]
    for member in found:
        member.join(controller)
    return found


def get(plane: ControlPlane, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plane.kubectl("get", kind, name, "-o", "json"))
    return found


def patch(plane: ControlPlane, kind: str, name: str, body: dict[str, Any]) -> None:
    plane.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(body))


def test_documents_that_were_swapped_between_two_nodes_come_back_to_their_places(
    plane: ControlPlane, controller: Controller, members: list[Member]
) -> None:
    assert members
    before = held(controller)
    good = {name: document(plane, name) for name in ("one", "two")}
    one, two = (get(plane, "nodegrant", name)["document"] for name in ("one", "two"))
    patch(plane, "nodegrant", "one", {"document": two})
    patch(plane, "nodegrant", "two", {"document": one})

    wait_until(lambda: {name: document(plane, name) for name in good} == good, "as they were")
    assert held(controller) == before


def test_an_old_grant_that_is_played_back_does_not_count(
    plane: ControlPlane, controller: Controller, members: list[Member]
) -> None:
    assert members
    old = get(plane, "nodegrant", "one")
    controller.ask("node.label", node="one", add={"site": "quay"}, drop=[])
    known = ("", old["document"]["body"])
    wait_until(lambda: document(plane, "one") not in known, "the newer is there")
    newer = document(plane, "one")
    patch(plane, "nodegrant", "one", {"document": old["document"]})

    wait_until(lambda: document(plane, "one") == newer, "the newer is there again")
    labels = controller.ask("node.show", node="one")["labels"]
    assert labels == {"site": "quay"}


def test_what_people_read_in_an_object_is_put_right_again(
    plane: ControlPlane, controller: Controller, members: list[Member]
) -> None:
    assert members
    for kind, name, edit in (
        ("nodegrant", "one", {"communities": ["mine"]}),
        ("clusternetwork", "default", {"segmentQuota": 1000}),
    ):
        spec = get(plane, kind, name)["spec"]
        patch(plane, kind, name, {"spec": edit})
        wait_until(lambda k=kind, n=name, s=spec: get(plane, k, n)["spec"] == s, kind)  # type: ignore[misc]


def test_annotations_as_large_as_they_can_be_trouble_nobody(
    plane: ControlPlane, controller: Controller, members: list[Member], tmp_path: Path
) -> None:
    """An API server takes 256 KiB of an object's annotations, and says so of 5 MB."""

    def annotate(kind: str, name: str, size: int) -> None:
        body = {"metadata": {"annotations": {"example.org/x": "x" * size}}}
        file = tmp_path / "patch.json"
        file.write_text(json.dumps(body))
        plane.kubectl("patch", kind, name, "--type=merge", f"--patch-file={file}")

    async def work() -> None:
        one, two = (Listener(each, plane.kubeconfig) for each in members)
        one.running.announce("192.0.2.1")
        two.running.announce("192.0.2.2")
        async with listening(one, two):
            await until(lambda: one.running.addresses_of(two.uid) == ("192.0.2.2",))
            for kind, name in (
                *(("nodegrant", "one"), ("nodegrant", "two"), ("clusternetwork", "default")),
                *(("nodepresence", "one"), ("nodepresence", "two")),
            ):
                with pytest.raises(LabError, match=r"Too long|[Tt]oo large"):
                    await asyncio.to_thread(annotate, kind, name, 5_000_000)
                await asyncio.to_thread(annotate, kind, name, 250_000)
            two.running.announce("192.0.2.23")
            await until(lambda: one.running.addresses_of(two.uid) == ("192.0.2.23",))
            assert one.road.state.error == ""
            assert one.road.state.refused == ""

    asyncio.run(work())
    controller.ask("node.label", node="two", add={"x": "y"}, drop=[])
    found = get(plane, "nodegrant", "two")
    assert found["spec"]["labels"] == {"x": "y"}
    assert len(found["metadata"]["annotations"]["example.org/x"]) == 250_000
    for kind in ("nodegrant", "nodepresence"):
        for name in ("one", "two"):
            plane.kubectl("annotate", kind, name, "example.org/x-")


def test_names_of_253_characters_are_nodes_as_others(
    plane: ControlPlane, controller: Controller, members: list[Member], tmp_path: Path
) -> None:
    assert members
    name = "n" * 253
    member = Member(tmp_path / "long", name)
    member.join(controller)

    assert get(plane, "nodegrant", name)["spec"]["node"] == name

    async def work() -> None:
        long = Listener(member, plane.kubeconfig)
        long.running.announce("192.0.2.253")
        async with listening(long):
            await until(lambda: long.road.state.connected)
            await asyncio.to_thread(
                wait_until, lambda: name in plane.kubectl("get", "nodepresences", "-o", "name")
            )

    asyncio.run(work())
    events = ("get", "events", "-o", "json", f"--field-selector=involvedObject.name={name}")
    wait_until(lambda: "Joined" in plane.kubectl(*events))
    controller.ask("node.remove", node=name)


def test_an_agent_without_rights_says_so_and_goes_on(
    plane: ControlPlane, controller: Controller, members: list[Member]
) -> None:
    assert controller

    async def work() -> None:
        one = Listener(members[0], plane.write_kubeconfig("nobody", "nobody"))
        async with listening(one):
            await until(lambda: "the account lacks this right" in one.road.state.error)
            # What to do about it, when that has lasted.
            await until(lambda: "kubectl apply -f deploy/limpet.yaml" in one.road.state.error)
            assert one.membership.grant is not None

    asyncio.run(work())


def test_definitions_of_another_version_are_told_and_nothing_is_forgotten(
    plane: ControlPlane, controller: Controller, members: list[Member]
) -> None:
    """Those of a newer Limpet, which serve its version alone."""

    def redefine() -> None:
        for plural in PLURALS:
            file = CRDS / f"{plural}.yaml"
            definition = yaml.safe_load(file.read_text())
            version = definition["spec"]["versions"][0]
            newer = {**version, "name": "v1beta1"}
            newer["storage"] = False
            definition["spec"]["versions"] = [{**version, "served": False}, newer]
            words = ("apply", "--server-side", "--force-conflicts", "-f", "-")
            plane.kubectl(*words, stdin=json.dumps(definition))

    before = held(controller)

    async def work() -> None:
        one, two = (Listener(each, plane.kubeconfig) for each in members)
        one.running.announce("192.0.2.1")
        two.running.announce("192.0.2.2")
        async with listening(one, two):
            await until(lambda: one.running.addresses_of(two.uid) == ("192.0.2.2",))
            await asyncio.to_thread(redefine)
            for each in (one, two):
                each.road.network_changed()
            await until(lambda: "of this version" in one.road.state.error)
            assert "kubectl apply -f deploy/crds" in one.road.state.error
            assert one.membership.is_member(two.uid)
            await asyncio.to_thread(
                wait_until, lambda: "kubectl apply -f deploy/crds" in controller.log.read_text()
            )
            await asyncio.to_thread(define, plane)
            two.running.announce("192.0.2.24")
            await until(lambda: one.running.addresses_of(two.uid) == ("192.0.2.24",))

    asyncio.run(work())
    wait_until(lambda: answer(controller, "network.show"), "it leads")
    assert held(controller) == before
