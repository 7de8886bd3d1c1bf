"""Objects that somebody deletes, makes nonsense of or puts back from an old copy: they come back
from what nodes hold, nothing is granted twice, and no node loses anything."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.command import LabError
from limpet.lab.kube.control_plane import ControlPlane
from tests.cloud.bed import Member, Running
from tests.controller.machines import Controller
from tests.kube.definitions import wait_until_served
from tests.waiting import until, wait_until

CRDS = Path(__file__).parents[3] / "deploy" / "crds"
PLURALS = ("clusternetworks", "nodegrants", "nodepresences", "communities")
CUSTOM = ",".join(f"{each}.limpet.dev" for each in PLURALS)
NAMESPACE = "limpet-lost"


@dataclass(frozen=True, slots=True)
class Bed:
    """One for all tests of this file: each leaves it as it was, but for nodes that came."""

    plane: ControlPlane
    controller: Controller
    folder: Path
    members: list[Member] = field(default_factory=list)
    """All nodes, in the order in which they came."""

    def member(self, name: str) -> Member:
        return Member(self.folder / name, name)

    def join(self, name: str) -> list[str]:
        """One more node, as soon as it is let in; its segments."""
        member = self.member(name)

        def joined() -> bool:
            try:
                member.join(self.controller)
            except LimpetError:
                return False
            return True

        wait_until(joined, f"{name} is let in")
        self.members.append(member)
        return wait_until(lambda: answered(self.controller).get(name, []), f"{name} has segments")

    def newcomer(self) -> list[str]:
        return self.join(f"node-{len(self.members)}")


@pytest.fixture(scope="module", name="bed")
def _bed(api: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    api.kubectl("apply", "-f", str(CRDS))
    wait_until_served(api, *(f"{plural}.limpet.dev" for plural in PLURALS))
    api.kubectl("create", "namespace", NAMESPACE)
    folder = tmp_path_factory.mktemp("bed")
    controller = Controller(
        folder / "c",
        store="kubernetes",
        kubeconfig=str(api.kubeconfig),
        namespace=NAMESPACE,
        pod_cidrs=["10.0.0.0/16"],
        restore_margin=8,
    )
    made = Bed(api, controller, folder)
    try:
        lead(controller)
        for name in ("one", "two", "three"):
            made.join(name)
        yield made
    finally:
        controller.kill_if_it_runs()


def lead(controller: Controller) -> None:
    """Started, and it leads."""
    controller.start()
    wait_until(lambda: answer(controller, "network.show"), "it leads")


def answer(controller: Controller, verb: str, **arguments: Any) -> Any:
    try:
        return controller.ask(verb, **arguments)
    except LimpetError:
        return None


def held(controller: Controller) -> dict[str, list[str]]:
    """Segments by node, of those that are not removed."""
    nodes = controller.ask("node.list")["nodes"]
    return {each["name"]: each["segments"] for each in nodes if each["state"] == "granted"}


def answered(controller: Controller) -> dict[str, list[str]]:
    """As `held`; nothing while nobody leads."""
    try:
        return held(controller)
    except LimpetError:
        return {}


async def all_know_all(agents: Sequence[Running]) -> None:
    for each in agents:
        await until(lambda agent=each: len(agent.membership.snapshot.nodes) == len(agents))  # type: ignore[misc]


@asynccontextmanager
async def running(members: Sequence[Member]) -> AsyncIterator[list[Running]]:
    async with AsyncExitStack() as undo:
        yield [await undo.enter_async_context(each.running()) for each in members]


def asked(plane: ControlPlane, *words: str) -> str:
    """What kubectl prints; nothing while the API server says no (an object that is written anew is
    not there for a moment)."""
    try:
        return plane.kubectl(*words)
    except LabError:
        return ""


def condition(plane: ControlPlane, of: str) -> str:
    path = f'{{.status.conditions[?(@.type=="{of}")].status}}'
    return asked(plane, "get", "clusternetwork", "default", "-o", f"jsonpath={path}")


def delete_state(plane: ControlPlane) -> None:
    plane.kubectl("delete", "configmap", "limpet-state", "-n", NAMESPACE)


def delete_config_maps(plane: ControlPlane) -> None:
    plane.kubectl("delete", "configmaps", "-n", NAMESPACE, "-l", "limpet.dev/kind")


def delete_custom(plane: ControlPlane) -> None:
    plane.kubectl("delete", CUSTOM, "--all")


def delete_all_but_the_keys(plane: ControlPlane) -> None:
    delete_custom(plane)
    delete_config_maps(plane)
    plane.kubectl("delete", "secrets", "-n", NAMESPACE, "-l", "limpet.dev/kind=token")


async def all_is_as_it_was(
    bed: Bed, agents: Sequence[Running], before: dict[str, list[str]]
) -> None:
    """After somebody else has come, who got what nobody holds; the nodes' objects are there."""
    nodes = list(bed.members)
    late = await asyncio.to_thread(bed.newcomer)
    name = bed.members[-1].name
    assert late
    assert not set(late) & {each for several in before.values() for each in several}
    await asyncio.to_thread(
        wait_until, lambda: answered(bed.controller) == {**before, name: late}, "all are known"
    )
    there = {f"nodegrant.limpet.dev/{each}" for each in (*before, name)}
    await asyncio.to_thread(
        wait_until,
        lambda: set(asked(bed.plane, "get", "nodegrants", "-o", "name").split()) == there,
        "every grant is written again",
    )
    # No node has lost anything, nor forgotten the others.
    for agent, member in zip(agents, nodes, strict=True):
        assert agent.segments == set(before[member.name])
        assert len(agent.membership.snapshot.nodes) >= len(nodes)


@pytest.mark.parametrize("while_it_leads", [False, True])
@pytest.mark.parametrize(
    "delete", [delete_state, delete_config_maps, delete_custom, delete_all_but_the_keys]
)
def test_what_is_deleted_by_hand_comes_back_and_nothing_is_granted_twice(
    bed: Bed, delete: Callable[[ControlPlane], None], while_it_leads: bool
) -> None:
    controller = bed.controller
    before = held(controller)
    assert len(before) == len(bed.members)

    async def work() -> None:
        async with running(bed.members) as agents:
            await all_know_all(agents)
            if not while_it_leads:
                await asyncio.to_thread(controller.stop)
            await asyncio.to_thread(delete, bed.plane)
            if not while_it_leads:
                await asyncio.to_thread(lead, controller)
            await all_is_as_it_was(bed, agents, before)

    asyncio.run(work())


def test_etcd_that_is_put_back_from_an_old_copy(bed: Bed) -> None:
    """Two nodes that joined after the copy are known again, by what all of them hold."""
    plane = bed.plane

    def stopped(change: Callable[[], object]) -> None:
        # Killed: one that is asked to end waits a minute for those who watch.
        plane.stop_process("kube-apiserver", signal.SIGKILL)
        plane.stop_process("etcd")
        change()
        plane.start_process("etcd")
        plane.start_process("kube-apiserver")

    copy = bed.folder / "etcd"
    stopped(lambda: shutil.copytree(plane.etcd_data, copy))
    for _ in range(2):
        bed.newcomer()
    before = held(bed.controller)
    assert len(before) == len(bed.members)

    def put_back() -> None:
        shutil.rmtree(plane.etcd_data)
        shutil.copytree(copy, plane.etcd_data)

    async def work() -> None:
        async with running(bed.members) as agents:
            await all_know_all(agents)
            await asyncio.to_thread(stopped, put_back)
            await all_is_as_it_was(bed, agents, before)

    asyncio.run(work())


def spoil(plane: ControlPlane, name: str) -> None:
    """Somebody edits a grant until it is nonsense."""
    body = {"document": {"body": "AAAA"}, "spec": {"segments": []}}
    plane.kubectl("patch", "nodegrant", name, "--type=merge", "-p", json.dumps(body))


def document(plane: ControlPlane, name: str) -> str:
    return asked(plane, "get", "nodegrant", name, "-o", "jsonpath={.document.body}")


def test_one_grant_that_nobody_can_read_holds_up_no_other_and_its_segments_stay_reserved(
    bed: Bed,
) -> None:
    controller = bed.controller
    before = held(controller)
    two = next(each for each in bed.members if each.name == "two")

    async def it_has_what_it_is_granted() -> None:
        async with running([two]) as [agent]:
            await agent.connected()
            assert agent.segments == set(before["two"])

    asyncio.run(it_has_what_it_is_granted())
    controller.stop()
    good = document(bed.plane, "two")
    assert good
    spoil(bed.plane, "two")

    lead(controller)
    assert held(controller).keys() == before.keys() - {"two"}
    wait_until(lambda: condition(bed.plane, "GrantsReadable") == "False", "it is told")
    assert "read NodeGrant two: " in controller.log.read_text()
    late = bed.newcomer()
    assert not set(late) & {each for several in before.values() for each in several}

    asyncio.run(it_has_what_it_is_granted())
    assert held(controller)["two"] == before["two"]
    wait_until(lambda: document(bed.plane, "two") == good, "it is written again")
    wait_until(lambda: condition(bed.plane, "GrantsReadable") == "True", "it is over")


def test_a_grant_that_is_made_nonsense_of_while_a_controller_leads_is_written_again(
    bed: Bed,
) -> None:
    before = held(bed.controller)
    good = wait_until(lambda: document(bed.plane, "two"), "the API server answers")
    spoil(bed.plane, "two")

    wait_until(lambda: document(bed.plane, "two") == good, "it is written again")
    assert held(bed.controller) == before


def test_without_its_keys_a_controller_says_what_is_lost_and_makes_no_other_cluster(
    bed: Bed,
) -> None:
    """The last one: nothing leads from here without a copy of the keys."""
    plane, controller = bed.plane, bed.controller
    assert bed.members
    controller.stop()
    plane.kubectl("delete", "secret", "limpet-authority", "-n", NAMESPACE)

    controller.start()
    wait_until(
        lambda: "put a back-up of the Secret limpet-authority" in controller.log.read_text(),
        "it says so",
    )
    assert answer(controller, "network.show") is None
    assert "Traceback" not in controller.log.read_text()
    secrets = plane.kubectl("get", "secrets", "-n", NAMESPACE, "-o", "name")
    assert "limpet-authority" not in secrets
