"""Objects that somebody deletes, makes nonsense of or puts back from an old copy: they come back
from what nodes hold, nothing is granted twice, and no node loses anything."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.kube.control_plane import ControlPlane
from tests.cloud.bed import Member, Running
from tests.controller.machines import Controller
from tests.waiting import until, wait_until

CRDS = Path(__file__).parents[2] / "deploy" / "crds"
PLURALS = ("clusternetworks", "nodegrants", "nodepresences", "communities")
CUSTOM = ",".join(f"{each}.limpet.dev" for each in PLURALS)
_numbers = itertools.count()


@pytest.fixture(scope="module", name="plane")
def _plane(api: ControlPlane) -> ControlPlane:
    api.kubectl("apply", "-f", str(CRDS))
    for plural in PLURALS:
        api.kubectl("wait", "--for=condition=Established", f"crd/{plural}.limpet.dev")
    return api


@pytest.fixture(name="namespace")
def _namespace(plane: ControlPlane) -> str:
    plane.kubectl("delete", CUSTOM, "--all")
    name = f"limpet-{next(_numbers)}"
    plane.kubectl("create", "namespace", name)
    return name


@pytest.fixture(name="controller")
def _controller(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Controller]:
    found = Controller(
        tmp_path / "c",
        store="kubernetes",
        kubeconfig=str(plane.kubeconfig),
        namespace=namespace,
        pod_cidrs=["10.0.0.0/16"],
        restore_margin=8,
    )
    lead(found)
    try:
        yield found
    finally:
        found.kill_if_it_runs()


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


@pytest.fixture(name="members")
def _members(controller: Controller, tmp_path: Path) -> list[Member]:
    found = [Member(tmp_path / name, name) for name in ("one", "two", "three")]
    for member in found:
        member.join(controller)
    return found


@asynccontextmanager
async def running(members: Sequence[Member]) -> AsyncIterator[list[Running]]:
    async with AsyncExitStack() as undo:
        yield [await undo.enter_async_context(each.running()) for each in members]


def newcomer(controller: Controller, folder: Path) -> list[str]:
    """Segments of one more node, as soon as it gets some."""
    member = Member(folder / "late", "late")

    def joined() -> bool:
        try:
            member.join(controller)
        except LimpetError:
            return False
        return True

    wait_until(joined, "the newcomer is let in")
    return held(controller)["late"]


def condition(plane: ControlPlane, of: str) -> str:
    path = f'{{.status.conditions[?(@.type=="{of}")].status}}'
    return str(plane.kubectl("get", "clusternetwork", "default", "-o", f"jsonpath={path}"))


def delete_state(plane: ControlPlane, namespace: str) -> None:
    plane.kubectl("delete", "configmap", "limpet-state", "-n", namespace)


def delete_config_maps(plane: ControlPlane, namespace: str) -> None:
    plane.kubectl("delete", "configmaps", "-n", namespace, "-l", "limpet.dev/kind")


def delete_custom(plane: ControlPlane, _namespace: str) -> None:
    plane.kubectl("delete", CUSTOM, "--all")


def delete_all_but_the_keys(plane: ControlPlane, namespace: str) -> None:
    delete_custom(plane, namespace)
    delete_config_maps(plane, namespace)
    plane.kubectl("delete", "secrets", "-n", namespace, "-l", "limpet.dev/kind=token")


@pytest.mark.parametrize("while_it_leads", [False, True])
@pytest.mark.parametrize(
    "delete", [delete_state, delete_config_maps, delete_custom, delete_all_but_the_keys]
)
def test_what_is_deleted_by_hand_comes_back_and_nothing_is_granted_twice(
    plane: ControlPlane,
    namespace: str,
    controller: Controller,
    members: list[Member],
    tmp_path: Path,
    delete: Callable[[ControlPlane, str], None],
    while_it_leads: bool,
) -> None:
    before = held(controller)
    assert len(before) == 3

    async def work() -> None:
        async with running(members) as agents:
            for each in agents:
                await until(lambda agent=each: len(agent.membership.snapshot.nodes) == 3)  # type: ignore[misc]
            if not while_it_leads:
                controller.stop()
            await asyncio.to_thread(delete, plane, namespace)
            if not while_it_leads:
                await asyncio.to_thread(lead, controller)
            late = await asyncio.to_thread(newcomer, controller, tmp_path)
            assert not set(late) & {each for several in before.values() for each in several}
            await asyncio.to_thread(
                wait_until, lambda: {**held(controller), "late": late} == {**before, "late": late}
            )
            # No node has lost anything, nor forgotten the others.
            for agent, member in zip(agents, members, strict=True):
                assert agent.segments == set(before[member.name])
                assert len(agent.membership.snapshot.nodes) >= 3

    asyncio.run(work())
    names = set(plane.kubectl("get", "nodegrants", "-o", "name").split())
    assert {f"nodegrant.limpet.dev/{each}" for each in before} <= names


def test_etcd_that_is_put_back_from_an_old_copy(
    plane: ControlPlane,
    controller: Controller,
    members: list[Member],
    tmp_path: Path,
) -> None:
    """Two nodes that joined after the copy are known again, by what all of them hold."""

    def stopped(change: Callable[[], object]) -> None:
        plane.stop_process("kube-apiserver")
        plane.stop_process("etcd")
        change()
        plane.start_process("etcd")
        plane.start_process("kube-apiserver")
        wait_until(plane.is_ready, "the API server answers")

    copy = tmp_path / "etcd"
    stopped(lambda: shutil.copytree(plane.etcd_data, copy))
    wait_until(lambda: answer(controller, "network.show"), "it leads again")
    later = [Member(tmp_path / name, name) for name in ("four", "five")]
    for member in later:
        wait_until(lambda m=member: joined(m, controller), member.name)  # type: ignore[misc]
    before = held(controller)
    assert len(before) == 5

    def put_back() -> None:
        shutil.rmtree(plane.etcd_data)
        shutil.copytree(copy, plane.etcd_data)

    async def work() -> None:
        async with running([*members, *later]) as agents:
            await asyncio.to_thread(stopped, put_back)
            late = await asyncio.to_thread(newcomer, controller, tmp_path)
            assert not set(late) & {each for several in before.values() for each in several}
            await asyncio.to_thread(
                wait_until, lambda: {**held(controller), "late": late} == {**before, "late": late}
            )
            for agent, member in zip(agents, [*members, *later], strict=True):
                assert agent.segments == set(before[member.name])

    asyncio.run(work())


def joined(member: Member, controller: Controller) -> bool:
    try:
        member.join(controller)
    except LimpetError:
        return False
    return True


def spoil(plane: ControlPlane, name: str) -> None:
    """Somebody edits a grant until it is nonsense."""
    body = {"document": {"body": "AAAA"}, "spec": {"segments": []}}
    plane.kubectl("patch", "nodegrant", name, "--type=merge", "-p", json.dumps(body))


def document(plane: ControlPlane, name: str) -> str:
    return str(plane.kubectl("get", "nodegrant", name, "-o", "jsonpath={.document.body}"))


def test_one_grant_that_nobody_can_read_holds_up_no_other_and_its_segments_stay_reserved(
    plane: ControlPlane, controller: Controller, members: list[Member], tmp_path: Path
) -> None:
    before = held(controller)
    controller.stop()
    good = document(plane, "two")
    spoil(plane, "two")

    lead(controller)
    assert held(controller).keys() == {"one", "three"}
    wait_until(lambda: condition(plane, "GrantsReadable") == "False", "it is told")
    assert "read NodeGrant two: " in controller.log.read_text()
    late = newcomer(controller, tmp_path)
    assert not set(late) & {each for several in before.values() for each in several}

    async def work() -> None:
        async with running(members[1:2]) as [two]:
            await two.connected()
            assert two.segments == set(before["two"])

    asyncio.run(work())
    assert held(controller)["two"] == before["two"]
    assert document(plane, "two") == good
    wait_until(lambda: condition(plane, "GrantsReadable") == "True", "it is over")


def test_a_grant_that_is_made_nonsense_of_while_a_controller_leads_is_written_again(
    plane: ControlPlane, controller: Controller, members: list[Member]
) -> None:
    before, good = held(controller), document(plane, members[1].name)
    spoil(plane, "two")

    wait_until(lambda: document(plane, "two") == good, "it is written again")
    assert held(controller) == before


def test_without_its_keys_a_controller_says_what_is_lost_and_makes_no_other_cluster(
    plane: ControlPlane, namespace: str, controller: Controller, members: list[Member]
) -> None:
    assert members
    controller.stop()
    plane.kubectl("delete", "secret", "limpet-authority", "-n", namespace)

    controller.start()
    wait_until(
        lambda: "put a back-up of the Secret limpet-authority" in controller.log.read_text(),
        "it says so",
    )
    assert answer(controller, "network.show") is None
    assert "Traceback" not in controller.log.read_text()
    secrets = plane.kubectl("get", "secrets", "-n", namespace, "-o", "name")
    assert "limpet-authority" not in secrets
