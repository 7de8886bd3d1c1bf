"""The agent is killed while policies and pods change: nothing that is closed opens, nothing that is
allowed is lost, and what is in the kernel is what the policies say.

Packets that must not pass are sent all the time; one that arrives fails the test. Those that must
pass go one by one, and each is awaited.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from limpet.agent.policies.keeper import OwnPolicies
from limpet.base.errors import LimpetError
from limpet.datapath.loop import Loop
from limpet.datapath.node.pod.attachments import Attachments
from limpet.lab.command import LabError
from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod
from limpet.policies.heard import ReadPolicies, encode_kept
from limpet.policies.policy import Key, PolicyPod
from tests.agent.test_policies import CONF, listed, pod
from tests.beds.namespaces import Netns
from tests.beds.own_tables import others_can_delete
from tests.conftest import SEGMENTS, NodeFactory
from tests.docs.pages import blocks
from tests.effort import effort
from tests.waiting import PATIENCE_S, wait_until

CHANGES = effort(200, 500)
KILLS = effort(4, 8)
OPEN, CLOSED = 7, 9
"""Ports of `web`: for its clients, and for nobody."""


def policy(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": spec,
    }


WEB = {"matchLabels": {"app": "web"}}
CLIENTS = policy(
    "clients",
    {
        "podSelector": WEB,
        "ingress": [
            {
                "from": [{"podSelector": {"matchLabels": {"app": "client"}}}],
                "ports": [{"protocol": "UDP", "port": OPEN}, {"port": OPEN}],
            }
        ],
    },
)


def another(chance: random.Random) -> dict[str, Any]:
    """A policy that may select anybody, lets nobody in at `CLOSED`, and closes nothing that
    `CLIENTS` opens."""
    far = ".".join(map(str, (198, 51, chance.randrange(256), chance.randrange(256))))
    first = chance.randrange(1000, 2000)
    let_in: list[dict[str, Any]] = [
        {"from": [{"ipBlock": {"cidr": f"{far}/32"}}]},
        {"ports": [{"port": first, "endPort": first + chance.randrange(50)}]},
        {"from": [{"podSelector": {"matchLabels": {"turn": str(chance.randrange(3))}}}],
         "ports": [{"protocol": "UDP", "port": first}]},
    ]  # fmt: skip
    spec: dict[str, Any] = {
        "podSelector": chance.choice([WEB, {"matchLabels": {"app": "other"}}]),
        "policyTypes": ["Ingress"],
        "ingress": chance.sample(let_in, chance.randrange(4)),
    }
    if chance.random() < 0.3:
        out = [{"ports": [{"protocol": "UDP", "port": CLOSED}]}, {"ports": [{"port": first}]}]
        spec = {"podSelector": {"matchLabels": {"app": "stranger"}}, "egress": out}
    return policy(f"other-{chance.randrange(8)}", spec)


class Storm(threading.Thread):
    """Asks `web` from `client` one by one, by new connections and by one that stands; `stranger`
    sends beside it what must not arrive."""

    def __init__(self, web: LabPod, client: LabPod, stranger: LabPod) -> None:
        super().__init__()
        self.asked = 0
        """Answered, all of them."""
        self.arrived = 0
        """Of what is closed."""
        self.error: BaseException | None = None
        self._web, self._client, self._stranger = (Netns(p.netns) for p in (web, client, stranger))
        self._addresses = [str(each.ip) for each in web.addresses]
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            with ExitStack() as undo:
                ways = [_Way(self, address, undo) for address in self._addresses]
                while not self._ended.wait(0.001):
                    for way in ways:
                        way.once()
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.error = error

    def stop(self) -> None:
        """Raises: AssertionError."""
        self._ended.set()
        self.join()
        assert self.error is None, f"after {self.asked} answers: {self.error!r}"
        assert not self.arrived
        assert self.asked

    def __enter__(self) -> Storm:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


class _Way:
    """By one IP version."""

    def __init__(self, storm: Storm, address: str, undo: ExitStack) -> None:
        self._storm, self._address = storm, address
        self._version = ip_address(address).version
        self._server = undo.enter_context(_udp(storm._web, self._version, OPEN))
        self._shut = undo.enter_context(_udp(storm._web, self._version, CLOSED))
        self._shut.setblocking(False)
        self._stranger = undo.enter_context(_udp(storm._stranger, self._version, 0))
        listener = undo.enter_context(storm._web.listening(address, OPEN))
        self._here = undo.enter_context(storm._client.connected(address, OPEN))
        self._there = undo.enter_context(listener.accept()[0])
        self._there.settimeout(PATIENCE_S)

    def once(self) -> None:
        word = str(self._storm.asked).encode()
        self._stranger.sendto(word, (self._address, CLOSED))
        with _udp(self._storm._client, self._version, 0) as client:
            client.sendto(word, (self._address, OPEN))
            found, where = self._server.recvfrom(64)
            assert found == word
            self._server.sendto(word, where)
            assert client.recv(64) == word
        for one, other in ((self._here, self._there), (self._there, self._here)):
            one.sendall(word)
            assert other.recv(64) == word
        self._storm.asked += 1
        self._storm.arrived += len(_received(self._shut))


def _udp(netns: Netns, version: int, port: int) -> socket.socket:
    made = netns.open_socket(version, socket.SOCK_DGRAM)
    made.settimeout(PATIENCE_S)
    made.bind(("0.0.0.0" if version == 4 else "::", port))
    return made


def _received(receiver: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(receiver.recv(64))
        except BlockingIOError:
            return found


def is_as_planned(node: LabNode) -> bool:
    """Whether another one who reads the same files would change nothing in the kernel."""
    links = node.links()
    with Netns(node.name).entered():
        loop = Loop()
        kept = Path(node.settings["state_dir"]) / "policies.json"
        attachments = Attachments(node.run_dir / "attachments")
        second = OwnPolicies(loop, kept, attachments, lambda name: str(links[name]["address"]))
        try:
            want = second.part.plan()
            return second.part.state(want) == want
        finally:
            second.close()
            loop.close()


def kill_while(node: LabNode, delay_s: float, verb: str, **arguments: Any) -> None:
    """The change is made, though the agent is killed some moment while it is asked for it."""
    timer = threading.Timer(delay_s, node.stop_agent, [signal.SIGKILL])
    timer.start()
    try:
        node.ask(verb, **arguments)
    except LimpetError:
        answered = False
    else:
        answered = True
    timer.join()
    node.start_agent()
    assert is_as_planned(node), "kernel and plan agree as soon as the agent is there again"
    if not answered:
        node.ask(verb, **arguments)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_nothing_closed_opens_and_nothing_allowed_is_lost_when_the_agent_is_killed_amid_changes(
    node: LabNode, chance: random.Random
) -> None:
    web, client, stranger = (
        pod(node, name, {"app": name}) for name in ("web", "client", "stranger")
    )
    node.ask("policy.apply", documents=[CLIENTS])
    kills = set(chance.sample(range(CHANGES), KILLS))
    with Storm(web, client, stranger) as storm:
        for number in range(CHANGES):
            arguments: dict[str, Any] = {"documents": [another(chance)]}
            verb = "policy.apply"
            if number % 5 == 0:
                turn = str(chance.randrange(3))
                verb, arguments = (
                    "pod.label",
                    {"namespace": "shop", "name": "stranger", "put": {"turn": turn}},
                )
            if number in kills:
                kill_while(node, chance.random() * 0.02, verb, **arguments)
            else:
                node.ask(verb, **arguments)
        assert is_as_planned(node)
        storm.stop()
    assert len(node.ask("policy.list")["policies"]) > 1


@contextmanager
def knocking(stranger: LabPod, addresses: Sequence[str]) -> Iterator[None]:
    """Within the block, the pod sends to port `CLOSED` of all the addresses, all the time."""
    netns, stop = Netns(stranger.netns), threading.Event()
    for family in ("ipv4", "ipv6"):  # whoever comes is found at once
        netns.sysctl(f"net/{family}/neigh/eth0/retrans_time_ms", "10")

    def send() -> None:
        with _udp(netns, 4, 0) as four, _udp(netns, 6, 0) as six:
            while not stop.wait(0.001):
                for address in addresses:
                    sender = six if ":" in address else four
                    try:
                        sender.sendto(b"knock", (address, CLOSED))
                    except OSError:
                        continue  # nobody has it now

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Ears:
    """Hear what comes to a pod from before it has its interface on."""

    def __init__(self, pods: Sequence[LabPod], undo: ExitStack) -> None:
        self._sockets = [
            undo.enter_context(_udp(Netns(each.netns), version, CLOSED))
            for each in pods
            for version in (4, 6)
        ]
        for each in self._sockets:
            each.setblocking(False)

    def heard(self) -> int:
        return sum(len(_received(each)) for each in self._sockets)


ADDRESSES = [f"{net}{n:x}" for net in ("10.244.7.", "fd00:7::") for n in range(2, 10)]


@pytest.mark.timeout(300)
def test_a_pod_is_closed_before_its_first_packet_though_the_agent_is_killed_while_it_is_added(
    node: LabNode, chance: random.Random
) -> None:
    node.environment["LIMPET_WAIT_S"] = "60"
    node.ask("policy.apply", documents=[CLIENTS])
    stranger = pod(node, "stranger", {})
    pods = [node.pod(f"web-{number}", namespace="shop") for number in range(6)]
    conf = {**CONF, "args": {"cni": {"labels": listed({"app": "web"})}}}

    def turn(verb: str) -> None:
        with ThreadPoolExecutor(len(pods)) as pool:
            asked = [pool.submit(node.cni, verb, each, conf=conf) for each in pods]
            timer = threading.Timer(chance.random() * 0.1, node.stop_agent, [signal.SIGKILL])
            timer.start()
            timer.join()
            node.start_agent()
            assert [each.result().document for each in asked if each.result().exit_code] == []

    with ExitStack() as undo:
        undo.enter_context(knocking(stranger, ADDRESSES))
        ears = Ears(pods, undo)
        for _ in range(3):
            turn("ADD")
            assert is_as_planned(node)
            turn("DEL")
            assert not ears.heard()
        turn("ADD")
        assert not ears.heard()
        node.ask("policy.delete", namespace="shop", name="clients")
        wait_until(ears.heard, "it knocks")


def test_without_an_agent_a_pod_is_not_added_rather_than_open(node: LabNode) -> None:
    node.environment["LIMPET_WAIT_S"] = "0"
    node.ask("policy.apply", documents=[CLIENTS])
    node.stop_agent(signal.SIGKILL)
    web = node.pod("web", namespace="shop")
    assert node.cni("ADD", web).exit_code
    assert [line.split()[1] for line in web.run("ip", "-o", "link").splitlines()] == ["lo:"]


OFFLINE = {"source": "kubernetes", "policies": "on", "kubernetes_server": "https://192.0.2.99:6443"}
"""Nobody is there."""


@pytest.mark.parametrize("source", ["own", "kubernetes"])
def test_after_a_reboot_while_cut_off_a_pod_is_closed_before_its_first_packet(
    make_node: NodeFactory, source: str
) -> None:
    node = make_node(segments=SEGMENTS, **(OFFLINE if source == "kubernetes" else {}))
    if source == "own":
        node.start_agent()
        node.ask("policy.apply", documents=[CLIENTS])
    else:
        kept = Path(node.settings["state_dir"]) / "policies-of-kubernetes.jsonl"
        kept.parent.mkdir(parents=True)
        kept.write_bytes(encode_kept(as_heard().kept()))
    node.reboot()
    node.start_agent()
    stranger = pod(node, "stranger", {"app": "stranger"})
    web = node.pod("web", namespace="shop")
    conf = {**CONF, "args": {"cni": {"labels": listed({"app": "web"})}}}
    with knocking(stranger, ADDRESSES), ExitStack() as undo:
        ears = Ears([web], undo)
        web.add(conf=conf)
        client = pod(node, "client", {"app": "client"})
        assert not ears.heard()
    with Storm(web, client, stranger) as storm:
        wait_until(lambda: storm.asked > 20 or storm.error, "clients are let in")
        storm.stop()


def as_heard() -> ReadPolicies:
    """What an API server has told before it could not be reached any more."""
    heard = ReadPolicies()
    heard.put_policy(Key("shop", "clients"), json.loads(json.dumps(CLIENTS)))
    heard.namespaces["shop"] = {}
    for name in ("web", "client", "stranger"):
        heard.pods[Key("shop", name)] = PolicyPod(Key("shop", name), (), {"app": name})
    return heard


SHUT = 11
"""A port of `web` for nobody; and it may not begin anything itself."""
SILENT = policy("silent", {"podSelector": WEB, "policyTypes": ["Egress"]})
FOREIGN = (
    "delete table inet limpet_policy",
    "delete table bridge limpet_policy",
    "flush table inet limpet_policy",
    "flush ruleset",
)
OPENING = ("delete table inet limpet_policy", "flush ruleset")
"""Where nobody puts it right. br_netfilter may be on, so the other may open nothing."""
TRACKS = [
    line
    for family in ("ip", "ip6")
    for line in (
        f"add table {family} other",
        f"add chain {family} other x {{ type filter hook forward priority 0; }}",
        f"add rule {family} other x ct state new counter",
    )
]
"""Something else has the kernel track connections: one that stands is let in unseen."""


class Flood(threading.Thread):
    """Sends numbered words to `SHUT` of `web` from one port for each IP version, all the time; what
    arrives is answered, so that the kernel takes it for a conversation."""

    def __init__(self, web: LabPod, stranger: LabPod) -> None:
        super().__init__()
        self.sent = 0
        self.arrived = -1
        """The newest word that did."""
        self.answered = 0
        self._web, self._stranger = Netns(web.netns), Netns(stranger.netns)
        self._addresses = [str(each.ip) for each in web.addresses]
        self._ended = threading.Event()

    def run(self) -> None:
        with ExitStack() as undo:
            pairs = []
            for address in self._addresses:
                version = ip_address(address).version
                sender = undo.enter_context(_udp(self._stranger, version, 0))
                server = undo.enter_context(_udp(self._web, version, SHUT))
                sender.setblocking(False)
                server.setblocking(False)
                pairs.append((sender, server, address))
            while not self._ended.wait(0.001):
                for sender, server, address in pairs:
                    with suppress(OSError):
                        sender.sendto(str(self.sent).encode(), (address, SHUT))
                    self._answer(server)
                    self.answered += len(_received(sender))
                self.sent += 1

    def _answer(self, server: socket.socket) -> None:
        with suppress(OSError):  # there is no more, or it may not answer
            while True:
                word, where = server.recvfrom(64)
                self.arrived = max(self.arrived, int(word))
                server.sendto(word, where)

    def is_kept_out(self) -> bool:
        """Of the next words none arrives."""
        first = self.sent
        wait_until(lambda: self.sent >= first + 50, "it sends")
        return self.arrived < first

    def __enter__(self) -> Flood:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


class Shop:
    """`web` is shut, with a connection that may go on; `flood` tries to get in all the time."""

    def __init__(self, node: LabNode, undo: ExitStack) -> None:
        web, client, stranger = (
            pod(node, name, {"app": name}) for name in ("web", "client", "stranger")
        )
        node.ask("policy.apply", documents=[CLIENTS, SILENT])
        address = str(web.addresses[0].ip)
        listener = undo.enter_context(Netns(web.netns).listening(address, OPEN))
        self._here = undo.enter_context(Netns(client.netns).connected(address, OPEN))
        self._there = undo.enter_context(listener.accept()[0])
        self._there.settimeout(PATIENCE_S)
        self._node = node
        self.flood = undo.enter_context(Flood(web, stranger))
        self.planned = self.listed()

    def listed(self) -> tuple[str, ...]:
        tables = self._node.run("nft", "list", "tables")
        families = [each for each in ("inet", "bridge") if f"{each} limpet_policy" in tables]
        return tuple(
            self._node.run("nft", "-s", "list", "table", f, "limpet_policy") for f in families
        )

    def goes_on(self, word: str) -> bool:
        self._here.sendall(word.encode())
        return self._there.recv(64) == word.encode()

    def until_as_planned(self, words: str) -> None:
        wait_until(lambda: self.listed() == self.planned, f"after {words} all is as planned")
        wait_until(self.flood.is_kept_out, f"after {words} it is kept out again")
        assert self.goes_on(words), "who is let in goes on"
        assert self.flood.is_kept_out(), "and it stays so"


@pytest.mark.skipif(others_can_delete(), reason="before Linux 6.9 tables belong to nobody")
def test_others_cannot_delete_policies_of_an_agent_that_runs_and_no_pod_is_ever_open(
    node: LabNode,
) -> None:
    with ExitStack() as undo:
        shop = Shop(node, undo)
        for agent in ("runs", "sleeps", "has begun anew"):
            if agent == "sleeps":
                os.kill(node.agent_pid, signal.SIGSTOP)
            if agent == "has begun anew":
                os.kill(node.agent_pid, signal.SIGCONT)
                node.stop_agent(signal.SIGKILL)
                node.start_agent()
            for words in FOREIGN:
                node.run("nft", "; ".join(TRACKS))
                if words == "flush ruleset":
                    node.run("nft", words)
                    assert "other" not in node.run("nft", "list", "tables")
                else:
                    with pytest.raises(LabError, match="Operation not permitted"):
                        node.run("nft", words)
                assert shop.listed() == shop.planned
                assert shop.goes_on(words)
        assert shop.flood.is_kept_out()
        assert shop.flood.arrived < 0, "nothing ever arrived"
        assert is_as_planned(node)


@pytest.mark.skipif(not others_can_delete(), reason="from Linux 6.9 on others cannot delete them")
def test_where_others_can_delete_them_their_twins_hold_and_no_pod_is_ever_open(
    node: LabNode,
) -> None:
    """Debian's 6.1 (`make test-vm`); what the twins do is in `datapath/policy/test_twins.py`."""
    with ExitStack() as undo:
        shop = Shop(node, undo)
        for words in FOREIGN:
            node.run("nft", "; ".join(TRACKS))
            assert shop.flood.is_kept_out()
            node.run("nft", words)
            shop.until_as_planned(words)
        assert shop.flood.arrived < 0, "nothing ever arrived"
        with pytest.raises(LabError, match="Operation not permitted"):
            node.run("nft", "delete table inet limpet_policy_spare")
        assert is_as_planned(node)


def test_what_others_delete_of_an_agent_that_was_killed_is_back_at_its_start_and_what_began_ends(
    node: LabNode,
) -> None:
    """Nothing of ours is there then that could keep them from it, nor close the pods."""
    with ExitStack() as undo:
        shop = Shop(node, undo)
        flood = shop.flood
        for words in FOREIGN:
            node.run("nft", "; ".join(TRACKS))
            assert flood.is_kept_out()
            before = flood.sent
            node.stop_agent(signal.SIGKILL)
            assert flood.is_kept_out(), "the agent's end alone opens nothing"
            node.run("nft", words)
            if words in OPENING:
                wait_until(lambda: flood.arrived >= before, f"after {words} it is open")  # noqa: B023
            node.start_agent()
            shop.until_as_planned(words)
            if not others_can_delete():
                with pytest.raises(LabError, match="Operation not permitted"):
                    node.run("nft", "delete table inet limpet_policy")
        assert flood.answered
        assert is_as_planned(node)
    assert "connections that no policy allows were ended" in node.log()


(NOBODYS,) = (
    command.text
    for block in blocks("docs/operations.md")
    if block.language == "console"
    for command in block.commands
    if "delete table" in command.text
)
"""What a person types: tables are then as an earlier Limpet has left them, which cannot change what
has belonged to a socket."""


@pytest.mark.skipif(others_can_delete(), reason="before Linux 6.9 tables belong to nobody")
def test_an_agent_takes_tables_that_are_of_an_earlier_limpet_and_no_packet_is_wrong_meanwhile(
    node: LabNode,
) -> None:
    web, client, stranger = (
        pod(node, name, {"app": name}) for name in ("web", "client", "stranger")
    )
    node.ask("policy.apply", documents=[CLIENTS])
    with Storm(web, client, stranger) as storm:
        for _ in range(effort(3, 20)):
            node.stop_agent(signal.SIGKILL)
            node.run("sh", "-c", NOBODYS)
            assert "flags" not in node.run("nft", "list", "table", "inet", "limpet_policy")
            node.start_agent()
            assert is_as_planned(node)
            with pytest.raises(LabError, match="Operation not permitted"):
                node.run("nft", "delete table bridge limpet_policy")
            assert "spare" not in node.run("nft", "list", "tables")
        storm.stop()
