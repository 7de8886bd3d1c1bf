"""Nodes get in by the account of their agents' pods: who does, and as whom; who does not."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.base.settings import SourceSettings
from limpet.cloud.enrollment import Enrollment
from limpet.cloud.join import Joined, join, keep_waiting_pods
from limpet.cloud.join_requests import JoinOrder
from limpet.cloud.pod_reports import keep_bindings
from limpet.cloud.second_road.api_server import ApiServerSource, find_api_server, told_controllers
from limpet.cluster.api import ACCOUNT_AUDIENCE, InterfaceAddresses
from limpet.cni.ledgers import Ledgers
from limpet.datapath.node.pod.attachments import Attachments
from limpet.ipam.ledger import Ledger
from limpet.lab.kube.control_plane import ControlPlane
from tests.cloud.bed import Member, Running
from tests.controller.machines import Controller
from tests.kube.installed.test_accounts import answers, kubeconfig_of, settings_in_the_manifests
from tests.kube.installed.test_manifests import SPACE, User, admin, bound_token, pod, signed_token
from tests.waiting import until, wait_until

__all__ = ["admin"]

FOR_CONTROLLER = f"--audience={ACCOUNT_AUDIENCE}"


def make_replica(api: ControlPlane, folder: Path) -> Controller:
    """As the manifests' account, with their settings but for ports; not started."""
    folder.mkdir()
    kubeconfig = kubeconfig_of(api, folder, "limpet-controller")
    settings = {**settings_in_the_manifests(), "kubeconfig": str(kubeconfig)}
    del settings["metrics_listen"]
    return Controller(folder / "c", pod_cidrs=["10.0.0.0/16"], **settings)


@pytest.fixture(scope="module")
def replicas(
    admin: User, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Controller, Controller]]:
    folder = tmp_path_factory.mktemp("replicas")
    one, two = (make_replica(admin.api, folder / name) for name in ("one", "two"))
    try:
        yield one.start(), two.start()
    finally:
        for each in (one, two):
            each.kill_if_it_runs()


def told(admin: User) -> tuple[tuple[str, ...], str]:
    """Where the controllers are and their CA, as agents find it."""
    found = json.loads(admin.run("get", "clusternetworks", "-o", "json"))["items"]
    return told_controllers(found[0].get("status")) if found else ((), "")


def leader_of(replicas: tuple[Controller, ...]) -> Controller | None:
    return next((each for each in replicas if answers(each)), None)


def awaited_leader(admin: User, replicas: tuple[Controller, ...]) -> Controller:
    """Once agents are told where it is."""

    def found() -> Controller | None:
        leader, (addresses, _) = leader_of(replicas), told(admin)
        known = leader is not None and addresses[:1] == (f"127.0.0.1:{leader.port}",)
        return leader if known else None

    leader = wait_until(found, "one leads, and the ClusterNetwork says where")
    assert leader is not None
    return leader


@pytest.fixture
def leader(admin: User, replicas: tuple[Controller, Controller]) -> Controller:
    return awaited_leader(admin, replicas)


@dataclass
class Door:
    """How whoever has a token tries to get in."""

    admin: User
    folder: Path

    def member(self, name: str, folder: str = "") -> Member:
        return Member(self.folder / (folder or name), name)

    def enter(self, token: str, name: str, member: Member | None = None) -> Joined:
        """Raises: LimpetError."""
        addresses, ca = told(self.admin)
        order = JoinOrder(token, addresses, name, account_ca=ca)
        return join((member or self.member(name, "thief")).folders, order, ())

    def refusal(self, token: str, name: str, member: Member | None = None) -> str:
        with pytest.raises(LimpetError) as caught:
            self.enter(token, name, member)
        return str(caught.value)


@pytest.fixture
def door(admin: User, leader: Controller, tmp_path: Path) -> Door:
    return Door(admin, tmp_path)


def test_a_node_gets_in_by_itself_and_keeps_its_segments_when_it_comes_again(
    admin: User, door: Door, leader: Controller, tmp_path: Path
) -> None:
    bound = ("--bound-object-kind=Pod", "--bound-object-name=limpet-agent-node-a")
    kubeconfig = kubeconfig_of(admin.api, tmp_path, "limpet-agent", *bound)
    token_file = tmp_path / "token"
    source = SourceSettings(source="kubernetes", kubeconfig=kubeconfig, join_token_file=token_file)
    member = door.member("node-a")
    enrollment = Enrollment(member.folders, source, lan=tuple, random=lambda: 0.0)

    async def work() -> None:
        entering = asyncio.create_task(enrollment.run())
        await until(lambda: "read token" in enrollment.problem)
        token = await asyncio.to_thread(bound_token, admin, "node-a", FOR_CONTROLLER)
        token_file.write_text(token)
        await entering

    asyncio.run(work())

    identity = member.identity
    assert identity.by_account
    assert identity.controllers[0] == f"127.0.0.1:{leader.port}"
    held = admin.get("nodegrant", "node-a")["spec"]
    assert held["uid"] == identity.uid
    assert len(held["segments"]) == 1
    assert held["roles"] == ["edge"]

    (member.folder / "cluster.json").unlink()  # the answer was lost on its way
    again = door.enter(bound_token(admin, "node-a", FOR_CONTROLLER), "node-a", member)
    assert again.uid == identity.uid
    assert [str(each) for each in again.segments] == held["segments"]
    asyncio.run(_is_let_in(member))


async def _is_let_in(member: Member) -> None:
    async with member.running() as running:
        await running.connected()


def test_a_new_machine_under_an_old_name_is_let_in_when_a_person_says_so(
    admin: User, door: Door, leader: Controller, tmp_path: Path
) -> None:
    """With the addresses of the pods that the old one had."""
    admin.run("create", about=pod("limpet-agent-node-c", "node-c", "limpet-agent"))
    admin.run("create", about={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-c"}})
    token = bound_token(admin, "node-c", FOR_CONTROLLER)
    old, new = door.member("node-c", "first"), door.member("node-c", "new")
    first = door.enter(token, "node-c", old)
    address = str(first.segments[0][5])
    kept = InterfaceAddresses("limpet", "default", "db-0", "eth0", (address,))

    async def report() -> None:
        keep_bindings(old.folders.data_dir, [kept])
        async with old.running():
            await until(lambda: address in str(leader.ask("pod.list")))

    asyncio.run(report())

    assert "limpet node replace node-c" in door.refusal(token, "node-c", new)

    leader.ask("node.replace", node="node-c")
    # Its agent runs meanwhile, and has the records.
    ledgers = Ledgers(new.folders.data_dir, 30.0, Attachments(tmp_path / "attachments"))
    ledgers.ledger("limpet")
    second = door.enter(token, "node-c", new)
    ledgers.close()
    assert second.uid != first.uid
    assert second.segments == first.segments
    for _ in range(2):  # the agent begins anew, and is killed in the midst
        keep_waiting_pods(new.folders)
    with closing(Ledger.open(new.folders.data_dir / "limpet", "limpet")) as ledger:
        assert {str(at): key.key.pod for at, key in ledger.bindings().items()} == {address: "db-0"}


def of_another_node(admin: User) -> tuple[str, str]:
    return bound_token(admin, "node-a", FOR_CONTROLLER), "node node-a, which speaks for that node"


def of_no_pod(admin: User) -> tuple[str, str]:
    token = admin.run("create", "token", "limpet-agent", "-n", SPACE, FOR_CONTROLLER).strip()
    return token, "names no pod"


def of_a_node_and_no_pod(admin: User) -> tuple[str, str]:
    """What an administrator, and no kubelet, makes."""
    bound = ("--bound-object-kind=Node", "--bound-object-name=node-b")
    words = ("create", "token", "limpet-agent", "-n", SPACE, FOR_CONTROLLER, *bound)
    return admin.run(*words).strip(), "names no pod"


def of_a_pod_that_is_no_agent(admin: User) -> tuple[str, str]:
    token = bound_token(admin, "node-b", FOR_CONTROLLER, account="bystander")
    return token, f"is of system:serviceaccount:{SPACE}:bystander"


def for_the_api_server(admin: User) -> tuple[str, str]:
    return bound_token(admin, "node-b"), "does not take the pod's token"


def for_somebody_else(admin: User) -> tuple[str, str]:
    return bound_token(admin, "node-b", "--audience=vault"), "does not take the pod's token"


def _claims(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    return claims


def expired(admin: User) -> tuple[str, str]:
    token = bound_token(admin, "node-b", FOR_CONTROLLER)
    old = signed_token(admin, token.split(".")[0], {**_claims(token), "exp": 1})
    return old, "does not take the pod's token"


def changed_by_hand(admin: User) -> tuple[str, str]:
    """Node A's, with node B's name written into it."""
    header, _, signature = bound_token(admin, "node-a", FOR_CONTROLLER).split(".")
    claims = _claims(bound_token(admin, "node-b", FOR_CONTROLLER))
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"{header}.{body}.{signature}", "does not take the pod's token"


def no_token(_admin: User) -> tuple[str, str]:
    return "hello", "is no token of a pod's service account"


@pytest.mark.parametrize(
    "token_of",
    [
        of_another_node,
        of_no_pod,
        of_a_node_and_no_pod,
        of_a_pod_that_is_no_agent,
        for_the_api_server,
        for_somebody_else,
        expired,
        changed_by_hand,
        no_token,
    ],
)
def test_a_thief_does_not_get_in_as_node_b(
    admin: User, door: Door, token_of: Callable[[User], tuple[str, str]]
) -> None:
    token, words = token_of(admin)

    assert words in door.refusal(token, "node-b")

    grants = admin.run("get", "nodegrants", "-o", "jsonpath={.items[*].spec.node}")
    assert "node-b" not in grants.split()


def test_the_token_of_a_pod_that_is_gone_lets_nobody_in(admin: User, door: Door) -> None:
    admin.run("create", about=pod("limpet-agent-over", "node-b", "limpet-agent"))
    token = bound_token(admin, "over", FOR_CONTROLLER)
    admin.run("delete", "pod", "limpet-agent-over", "-n", SPACE, "--force", "--grace-period=0")

    assert "a pod that is gone" in door.refusal(token, "node-b")


def test_a_key_that_is_not_held_is_found_out_before_anybody_is_asked(
    admin: User, door: Door, leader: Controller
) -> None:
    """Somebody who has heard of node A's public key and has its token."""
    member = door.member("node-d")
    admin.run("create", about={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-d"}})
    admin.run("create", about=pod("limpet-agent-node-d", "node-d", "limpet-agent"))
    token = bound_token(admin, "node-d", FOR_CONTROLLER)
    door.enter(token, "node-d", member)
    other = door.member("node-a", "copy")

    # The disk of node D in node A: its key is D's.
    copied = other.folder
    copied.mkdir(parents=True)
    (copied / "node.key").write_bytes((member.folder / "node.key").read_bytes())
    said = door.refusal(bound_token(admin, "node-a", FOR_CONTROLLER), "node-a", other)

    assert "this machine's key is that of node node-d" in said


def test_agents_follow_the_controllers_to_another_leader(
    admin: User,
    door: Door,
    replicas: tuple[Controller, Controller],
    leader: Controller,
    tmp_path: Path,
) -> None:
    admin.run("create", about={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-e"}})
    admin.run("create", about=pod("limpet-agent-node-e", "node-e", "limpet-agent"))
    token = bound_token(admin, "node-e", FOR_CONTROLLER)
    member = door.member("node-e")
    door.enter(token, "node-e", member)
    bound = ("--bound-object-kind=Pod", "--bound-object-name=limpet-agent-node-e")
    kubeconfig = kubeconfig_of(admin.api, tmp_path, "limpet-agent", *bound)
    settings = SourceSettings(source="kubernetes", kubeconfig=kubeconfig)
    # It remembers an address where nobody is any more.
    identity = replace(member.identity, controllers=("127.0.0.1:9",))
    other = next(each for each in replicas if each is not leader)

    async def work() -> None:
        running = Running(member.folders, identity, lambda _grant: (), "boot")
        road = ApiServerSource(
            running.membership,
            partial(find_api_server, settings),
            random=lambda: 0.0,
            hear_controllers=running.session.hear_controllers,
        )
        running.membership.subscribe(road.hear)
        running.session.start()
        road.start()
        try:
            await running.connected()
            assert running.session.state.controller == f"127.0.0.1:{leader.port}"
            await asyncio.to_thread(leader.stop)
            await until(lambda: running.session.state.controller == f"127.0.0.1:{other.port}")
            await running.connected()
        finally:
            await road.stop()
            await running.session.stop()
            running.close()
            await asyncio.sleep(0)

    asyncio.run(work())

    awaited_leader(admin, replicas)
    assert f"127.0.0.1:{other.port}" in member.identity.controllers
    leader.start()  # as it was
