"""`limpet join` against the real controller, and against what is none."""

from __future__ import annotations

import asyncio
import fcntl
import json
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from limpet.agent.settings import Settings
from limpet.base.bounds import members
from limpet.base.bounds.servers import HTTP_ANSWER
from limpet.base.errors import ConfigError, LimpetError
from limpet.base.http.connection import LinkError
from limpet.base.settings import PodSettings
from limpet.cli.install.joining import join_cluster
from limpet.cloud.join import join
from limpet.cloud.pod_reports import keep_bindings
from limpet.cluster import api
from limpet.cluster.api import InterfaceAddresses, format_token, parse_token, token_id
from limpet.cluster.identity import put_damage_aside
from limpet.cluster.reported_pods import record_bytes
from limpet.cluster.snapshot import completeness
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.ipam.leases import AddressState
from limpet.ipam.ledger import read_ledger
from limpet.lab.launch import launcher
from tests.beds.member import membership_of
from tests.beds.namespaces import NetnsFactory
from tests.beds.rogue import Authority, answer, says, serving
from tests.cloud.bed import Member
from tests.controller.machines import Controller, join_all
from tests.waiting import until

MakeController = Callable[..., Controller]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
WRITTEN = [
    "node.key",
    "node.key.pem",
    "ca.pem",
    "node.pem",
    "snapshot.log",
    "own.log",
    "cluster.json",
]
"""In this order."""


@pytest.fixture
def node(tmp_path: Path) -> Member:
    return Member(tmp_path / "node", "edge-1")


def nodes(controller: Controller) -> list[str]:
    return [each["name"] for each in controller.ask("node.list")["nodes"]]


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(LimpetError) as caught:
        work()
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_a_node_that_has_joined_knows_all_that_it_needs_without_the_cloud(
    controller: Controller, node: Member
) -> None:
    joined = node.join(controller)
    controller.stop()

    identity = node.identity
    assert (identity.name, identity.uid) == ("edge-1", joined.uid)
    file = SnapshotFile(node.folder / "snapshot.log", own_uid=identity.uid)
    known, problems = file.read(identity.pinned_key)
    file.close()
    assert problems == []
    assert known.value("network", "network").cluster == joined.cluster == "limpet"
    assert known.value("grant", identity.uid).segments == joined.segments
    assert list(map(str, joined.segments)) == ["10.244.0.0/24", "fd00:244::/64"]
    assert sorted(path.name for path in node.folder.iterdir()) == sorted(WRITTEN)
    for secret in ("node.key", "node.key.pem"):
        assert (node.folder / secret).stat().st_mode & 0o777 == 0o600
    assert node.folder.stat().st_mode & 0o777 == 0o700


def test_a_join_that_was_cut_off_anywhere_goes_on_with_the_same_key_and_token(
    controller: Controller, node: Member
) -> None:
    token = controller.token()
    first = node.join(controller, token)
    for left in range(1, len(WRITTEN)):
        for name in WRITTEN[left:]:
            (node.folder / name).unlink()

        assert node.join(controller, token) == first
        assert node.identity.uid == first.uid
    assert nodes(controller) == ["edge-1"]


def test_a_node_whose_key_is_whole_gets_its_place_again_where_the_rest_is_damaged(
    controller: Controller, node: Member
) -> None:
    first = node.join(controller)
    path = node.folder / "cluster.json"
    path.write_bytes(bytes(300))
    assert "remove the file and join again" in refusal(lambda: node.identity)

    put_damage_aside(node.folder)

    assert path.with_name("cluster.json.damaged").read_bytes() == bytes(300)
    assert node.join(controller) == first
    assert nodes(controller) == ["edge-1"]
    put_damage_aside(node.folder)
    assert node.identity.uid == first.uid


def test_a_node_whose_key_is_damaged_too_does_not_join_again(
    controller: Controller, node: Member
) -> None:
    node.join(controller)
    for name in ("cluster.json", "node.key"):
        (node.folder / name).write_bytes(bytes(300))

    assert "identity is damaged" in refusal(lambda: put_damage_aside(node.folder))


@pytest.mark.parametrize("rotten", [bytes(32), b"r" * 32], ids=["zeros", "another"])
def test_a_rotten_key_is_not_taken_for_one(
    controller: Controller, node: Member, rotten: bytes
) -> None:
    node.join(controller)
    (node.folder / "node.key").write_bytes(rotten)

    assert "node.key: it is not the key of node.pem" in refusal(lambda: node.identity)
    (node.folder / "cluster.json").write_bytes(bytes(300))
    assert "identity is damaged" in refusal(lambda: put_damage_aside(node.folder))


def test_nobody_joins_by_a_key_of_zeros(controller: Controller, node: Member) -> None:
    node.join(controller)
    (node.folder / "cluster.json").unlink()
    (node.folder / "node.key").write_bytes(bytes(32))

    assert "node.key: it is damaged" in refusal(lambda: node.join(controller))


def test_who_has_joined_is_told_so_and_keeps_its_identity(
    controller: Controller, node: Member
) -> None:
    uid = node.join(controller).uid
    assert "has joined already, as edge-1" in refusal(lambda: node.join(controller))
    assert node.identity.uid == uid
    assert nodes(controller) == ["edge-1"]


def test_anew_is_a_new_node_and_the_old_one_is_kept_aside(
    controller: Controller, node: Member
) -> None:
    first = node.join(controller)
    old = {path.name: path.read_bytes() for path in node.folder.iterdir()}
    lock = node.folders.run_dir / "agent.lock"
    lock.parent.mkdir()

    with open(lock, "w") as agent:
        fcntl.flock(agent, fcntl.LOCK_EX)
        said = refusal(lambda: node.join(controller, as_new=True))
    assert "systemctl stop limpet-agent" in said
    assert node.identity.uid == first.uid
    refusal(lambda: node.join(controller, "lmp1_no_token", as_new=True))
    assert node.identity.uid == first.uid

    second = node.join(controller, as_new=True)
    assert second.uid != first.uid
    assert not set(second.segments) & set(first.segments)
    assert node.identity.uid == second.uid
    aside = node.folder.with_name("cluster.old-1")
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == old


def test_new_hardware_keeps_the_addresses_of_the_pods_of_the_dead_machine(
    controller: Controller, node: Member, tmp_path: Path
) -> None:
    dead = Member(tmp_path / "dead", "edge-1")
    joined = dead.join(controller)
    pods = [
        InterfaceAddresses("limpet", "default", f"web-{number}", "eth0", (f"10.244.0.{number}",))
        for number in (7, 8)
    ]

    async def report() -> None:
        keep_bindings(dead.folders.data_dir, pods)
        async with dead.running():
            await until(lambda: len(controller.ask("pod.list")["pods"]) == 2)

    asyncio.run(report())
    controller.ask("node.replace", node="edge-1", cancel=False)

    again = node.join(controller)
    assert again.segments == joined.segments
    assert again.uid != joined.uid
    assert again.kept_pods == 2
    records = read_ledger(node.folders.data_dir / "limpet").records
    assert {(str(each.address), each.state, each.key and each.key.pod) for each in records} == {
        ("10.244.0.7", AddressState.BOUND, "web-7"),
        ("10.244.0.8", AddressState.BOUND, "web-8"),
    }


def test_pods_of_a_dead_machine_that_said_all_it_may_come_in_pages(
    controller: Controller, node: Member
) -> None:
    """A node that can't join, its token spent, was what came of one answer with all of them."""
    longest = members.REPORTED_NAME.most

    def pod(number: int) -> InterfaceAddresses:
        address = str(ip_address("10.244.0.0") + number)
        return InterfaceAddresses(
            "limpet", "n" * longest, f"{number:0{longest}}", "eth0", (address,)
        )

    each_bytes = record_bytes([pod((1 << 16) - 1)])
    pods = [pod((1 << 12) + number) for number in range(members.REPORTED_BYTES.most // each_bytes)]
    at_once = members.REPORT_BODY.most * 7 // 8 // each_bytes
    pages: list[tuple[int, api.PodPage]] = []

    async def report() -> None:
        (dead,) = await join_all(controller, "edge-1")
        async with dead:
            for sequence, first in enumerate(range(0, len(pods), at_once), 1):
                base = sequence - 1 if first else None
                await dead.report(sequence, pods[first : first + at_once], base)
            while not pages or len(pages) < pages[0][1].pages:
                body = await dead.fetch("GET", f"/v1/pods?page={len(pages)}", b"")
                pages.append((len(body), api.decode(body, api.PodPage)))

    asyncio.run(report())
    assert len(pages) > 1
    # A page is no more than a node may say at once, and so within what it takes for an answer.
    assert max(size for size, _ in pages) <= members.REPORT_BODY.most < HTTP_ANSWER.most
    assert sorted(each.pod for _, page in pages for each in page.pods) == [
        each.pod for each in pods
    ]
    controller.ask("node.replace", node="edge-1", cancel=False)
    assert node.join(controller).kept_pods == len(pods)
    records = read_ledger(node.folders.data_dir / "limpet").records
    assert {str(each.address) for each in records} == {each.addresses[0] for each in pods}


# Tokens


def test_a_token_that_is_cut_or_changed_is_refused_without_repeating_it(
    controller: Controller, node: Member
) -> None:
    token = controller.token()
    for bad in ("", "hello", token[:-5], token[:20]):
        said = refusal(lambda bad=bad: node.join(controller, bad or " "))  # type: ignore[misc]
        assert "read token" in said
        assert not bad or bad not in said
    assert not node.folder.exists()


def test_a_token_whose_secret_nobody_made_is_refused(controller: Controller, node: Member) -> None:
    token = parse_token(controller.token())
    guessed = format_token(type(token)(token.id, bytes(len(token.secret)), token.ca_digest))
    assert "nobody made this token" in refusal(lambda: node.join(controller, guessed))
    assert nodes(controller) == []


def test_a_token_that_was_used_is_refused_and_says_what_to_do(
    controller: Controller, node: Member, tmp_path: Path
) -> None:
    token = controller.token()
    Member(tmp_path / "other", "other").join(controller, token)
    said = refusal(lambda: node.join(controller, token))
    assert "used by another node" in said
    assert "limpet token create" in said


def test_a_token_that_expired_is_refused_and_says_what_to_do(
    controller: Controller, node: Member
) -> None:
    token = controller.token(ttl_s=0.001)
    said = refusal(lambda: node.join(controller, token))
    assert "the token expired" in said
    assert "limpet token create" in said


def test_a_token_that_was_removed_is_refused_and_says_what_to_do(
    controller: Controller, node: Member
) -> None:
    token = controller.token()
    controller.ask("token.remove", ids=[token_id(token)])
    said = refusal(lambda: node.join(controller, token))
    assert "an administrator removed the token" in said
    assert "limpet token create" in said
    assert nodes(controller) == []


def test_a_token_of_another_cluster_is_not_shown_to_this_controller(
    controller: Controller, make_controller: MakeController, node: Member
) -> None:
    other = make_controller().start()
    said = refusal(lambda: node.join(controller, other.token()))
    assert "not of the cluster that the token is of" in said
    assert nodes(controller) == nodes(other) == []


# Controllers


def test_all_controllers_are_kept_and_the_first_that_answers_lets_the_node_in(
    controller: Controller, node: Member
) -> None:
    order = node.order(controller)
    both = ("127.0.0.1:1", *order.controllers)
    node.join(controller, order.token, controllers=both)
    assert node.identity.controllers == both


def test_where_no_controller_answers_each_is_named(controller: Controller, node: Member) -> None:
    token = controller.token()
    controller.stop()
    order = node.order(controller, token, controllers=("127.0.0.1:1", "[::1]:2"))
    said = refusal(lambda: join(node.folders, order, ()))
    assert "127.0.0.1:1" in said
    assert "[::1]:2" in said
    assert "is `limpet controller` running" in said


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"220 mail.example ESMTP\r\n", "no controller"),
        (answer(b"<html>", "404 Not Found"), "no controller"),
        (answer(b"\xff" * 1000), "no controller"),
        (
            answer(b"-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n"),
            "answers in its place",
        ),
    ],
)
def test_what_is_no_controller_is_refused_in_words(
    controller: Controller, node: Member, tmp_path: Path, data: bytes, words: str
) -> None:
    rogue = Authority(tmp_path / "rogue")
    token = controller.token()

    async def body() -> str:
        async with serving(says(data), rogue.server_context()) as at:
            order = node.order(controller, token, controllers=(at,))
            with pytest.raises(LinkError) as caught:
                await asyncio.to_thread(join, node.folders, order, ())
            return str(caught.value)

    said = asyncio.run(body())
    assert words in said
    node.join(controller, token)


# Nodes that do not fit


def test_pods_that_would_share_addresses_with_the_lan_are_refused_unless_forced(
    controller: Controller, node: Member
) -> None:
    order = node.order(controller)
    lan = [ip_network("192.168.7.0/24"), ip_network("10.244.128.0/20")]
    said = refusal(lambda: join(node.folders, order, lan))
    assert "10.244.0.0/16 overlaps 10.244.128.0/20" in said
    assert "--force" in said
    assert not (node.folder / "cluster.json").exists()

    forced = node.order(controller, order.token, force=True)
    assert join(node.folders, forced, lan).name == "edge-1"
    assert nodes(controller) == ["edge-1"]


def test_a_kernel_without_ipv6_is_refused_where_pods_have_it_and_the_token_works_afterwards(
    controller: Controller, node: Member
) -> None:
    order = node.order(controller)

    said = refusal(lambda: join(node.folders, order, (), has_ipv6=False))

    assert "its pods have IPv6 addresses, of fd00:" in said
    assert not (node.folder / "cluster.json").exists()
    assert join(node.folders, order, ()).name == "edge-1"
    assert nodes(controller) == ["edge-1"]


def test_a_node_with_segments_of_its_own_is_refused(controller: Controller, node: Member) -> None:
    settings = Settings(
        folders=node.folders, pods=PodSettings(segments=(ip_network("10.9.0.0/24"),))
    )
    with pytest.raises(ConfigError, match=r"segments = \['10.9.0.0/24'\]"):
        join_cluster(settings, node.order(controller))
    assert nodes(controller) == []


def test_a_name_that_no_node_may_have_is_refused(controller: Controller, node: Member) -> None:
    token = controller.token()
    for name in ("", "-a", "a b", "x" * 254):
        order = node.order(controller, token, name=name)
        assert "--name" in refusal(lambda order=order: join(node.folders, order, ()))  # type: ignore[misc]


@pytest.fixture
def command(node: Member, tmp_path: Path) -> Command:
    """Runs `limpet join` as a person would, with one controller."""
    config = tmp_path / "agent.toml"
    config.write_text(
        f'state_dir = "{node.folders.state_dir}"\nrun_dir = "{node.folders.run_dir}"\n'
    )

    def run(controller: Controller, *more: str) -> subprocess.CompletedProcess[str]:
        at = f"127.0.0.1:{controller.port}"
        words = ["join", "--controller", at, "--config", str(config), *more]
        return launcher().run([sys.executable, "-m", "limpet", *words], timeout=60)

    return run


def test_the_command_prints_who_the_node_is_and_fails_in_one_line(
    controller: Controller, command: Command
) -> None:
    done = command(controller, "--token", controller.token(), "--name", "x", "--output", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["name"] == "x"
    assert document["segments"] == ["10.244.0.0/24", "fd00:244::/64"]
    assert "systemctl restart limpet-agent" in done.stderr

    again = command(controller, "--token", controller.token())
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("limpet: join: this node has joined already")
    assert again.stderr.count("\n") == 1


def test_the_command_looks_at_the_links_of_the_node(
    make_controller: MakeController, command: Command, make_netns: NetnsFactory
) -> None:
    netns = make_netns("node")
    with netns.entered():  # what this thread starts is there too
        controller = make_controller().start()
        token = controller.token()
        netns.ip(
            "link add lan type veth peer name far",
            "link set far up",
            "address add 10.244.5.1/24 dev lan",
            "link set lan up",
        )
        done = command(controller, "--token", token, "--name", "x")
        assert (done.returncode, done.stdout) == (1, "")
        assert "10.244.0.0/16 overlaps 10.244.5.0/24" in done.stderr
        netns.ip("link delete lan")
        done = command(controller, "--token", token, "--name", "x")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("x (")


CLOSED = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "closed", "namespace": "default"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}


def test_who_has_joined_has_the_clusters_policies_also_where_it_hears_nobody_after_that(
    controller: Controller, node: Member
) -> None:
    controller.ask("policy.apply", documents=[CLOSED])
    node.join(controller)
    controller.stop()

    member = membership_of(node.identity)
    known = member.replica.known
    member.close()

    assert known.value("policy", "NetworkPolicy/default/closed").document == CLOSED
    assert member.replica.has_heard_all


def test_a_node_that_may_lack_policies_knows_it_until_the_controller_has_told_all(
    controller: Controller, node: Member
) -> None:
    node.join(controller)
    completeness.doubt(node.folder)

    async def scenario() -> None:
        for elsewhere in ((), ("presence",)):
            completeness.doubt(node.folder)
            async with node.running(elsewhere=elsewhere) as running:
                assert not running.membership.replica.has_heard_all
                await until(lambda: not completeness.is_doubted(node.folder))
                assert running.membership.replica.has_heard_all

    asyncio.run(scenario())
