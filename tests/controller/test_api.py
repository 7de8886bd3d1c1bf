"""The HTTPS API, asked by nodes as they would."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from limpet.base.bounds.members import PUBLISHED_AT_ONCE, REPORTS_AT_ONCE
from limpet.base.errors import LimpetError
from limpet.cluster.api import SERVER_NAME, Code, InterfaceAddresses
from limpet.cluster.keys import public_key_of
from limpet.cluster.kinds import ABSENCE, KINDS, PODS, POLICY, PRESENCE
from limpet.cluster.kinds.absence import Absence
from limpet.cluster.kinds.pods import LabelledPods
from limpet.cluster.seal import read_sealed, seal
from tests.controller.machines import (
    Controller,
    Node,
    Refusal,
    join_all,
    network_in,
    of_kind,
    own_grant,
    until_bookmark,
)
from tests.waiting import until


def nodes_do(controller: Controller, names: str, body: Callable[..., Awaitable[Any]]) -> Any:
    """Runs `body` with one joined node for each letter of `names`."""

    async def run() -> Any:
        nodes = await join_all(controller, *names)
        try:
            return await body(*nodes)
        finally:
            await asyncio.gather(*(node.close() for node in nodes))

    return asyncio.run(run())


async def refused(work: Awaitable[Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await work
    return caught.value


# Joining


def test_a_node_joins_with_its_own_key_and_gets_a_segment_of_each_family(
    controller: Controller,
) -> None:
    async def body(node: Node) -> None:
        assert node.joined is not None
        assert node.grant.uid == node.uid
        assert list(map(str, node.grant.segments)) == ["10.244.0.0/24", "fd00:244::/64"]
        assert node.network(network_in(node.joined.documents)).cluster == "limpet"
        assert own_grant((await node.hello()).documents) == own_grant(node.joined.documents)

    nodes_do(controller, "a", body)


def test_the_answer_to_a_join_that_was_lost_is_given_again(controller: Controller) -> None:
    async def body() -> None:
        token = controller.token()
        async with Node(controller.url, "a") as node:
            first = await node.join(token)
            again = await node.join(token)
        assert again.documents == first.documents
        assert len(controller.ask("node.list")["nodes"]) == 1

    asyncio.run(body())


def test_a_node_that_does_not_hold_the_key_it_names_is_refused(controller: Controller) -> None:
    async def body() -> None:
        token = controller.token()
        other = public_key_of(Node("", "x").key)
        refusal = await refused(Node(controller.url, "a").join(token, public_key=other))
        assert refusal.code is Code.BAD_PROOF
        await Node(controller.url, "a").join(token)  # which has not used it up

    asyncio.run(body())


@pytest.mark.parametrize("name", ["", "-a", "a b", "ä", "a" * 254, "a\n", "../x"])
def test_a_name_that_is_none_is_refused_in_words(controller: Controller, name: str) -> None:
    async def body() -> None:
        refusal = await refused(Node(controller.url, name).join(controller.token()))
        assert refusal.status == 400
        assert refusal.refused.error.startswith("join as ")

    asyncio.run(body())


# Segments


def test_segments_are_granted_up_to_the_quota_and_never_overlap(
    make_controller: Callable[..., Controller],
) -> None:
    controller = make_controller(segment_quota=3).start()

    async def body(*nodes: Node) -> None:
        async def take_all(node: Node) -> None:
            await node.request_segments(4, 6)
            await node.request_segments(4)
            assert (await refused(node.request_segments(4))).code is Code.QUOTA

        await asyncio.gather(*map(take_all, nodes))
        held = [segment for node in nodes for segment in node.grant.segments]
        assert len(held) == len(set(held)) == 5 * len(nodes)

    nodes_do(controller, "abcdef", body)


def test_an_answer_that_was_lost_costs_no_segment(controller: Controller) -> None:
    async def body(node: Node) -> None:
        granted = await node.request_segments(4)
        node.grants.pop()  # as if it had not arrived
        assert await node.request_segments(4) == granted

    nodes_do(controller, "a", body)


def test_a_full_address_space_is_an_error_that_says_what_to_do(
    make_controller: Callable[..., Controller],
) -> None:
    controller = make_controller(pod_cidrs=["10.9.0.0/23"]).start()

    async def body(a: Node, b: Node) -> None:
        refusal = await refused(a.request_segments(4))
        assert refusal.code is Code.EXHAUSTED
        assert "limpet node remove" in refusal.refused.error
        token = controller.token()
        assert (await refused(Node(controller.url, "c").join(token))).code is Code.EXHAUSTED
        controller.ask("node.remove", node="b")
        assert (await refused(a.request_segments(4))).code is Code.EXHAUSTED  # it rests

    nodes_do(controller, "ab", body)


def test_a_segment_that_has_rested_is_granted_again_and_names_whom_it_supersedes(
    make_controller: Callable[..., Controller],
) -> None:
    controller = make_controller(pod_cidrs=["10.9.0.0/24"], quarantine_s=0).start()

    async def body(a: Node) -> None:
        controller.ask("node.remove", node="a")
        (b,) = await join_all(controller, "b")
        assert b.grant.segments == a.grant.segments
        assert b.grant.supersedes == (a.uid,)
        assert b.grant.revision > a.grant.revision

    nodes_do(controller, "a", body)


# Removal, replacement


def test_a_removed_node_is_refused_with_its_tombstone(controller: Controller) -> None:
    async def body(a: Node, b: Node) -> None:
        async with a.watch() as lines:
            await until_bookmark(lines)
            controller.ask("node.remove", node="a")
            seen = [line async for line in lines]
        assert seen[-1].refused is not None
        assert seen[-1].refused.code is Code.REMOVED
        for work in (a.hello(), a.publish(), a.request_segments(4), a.report(1, [], None)):
            refusal = await refused(work)
            assert refusal.code is Code.REMOVED
            assert refusal.refused.document is not None
            assert a.open(refusal.refused.document).tombstone
        await b.hello()

    nodes_do(controller, "ab", body)


def test_the_same_name_with_a_new_key_is_a_new_node(controller: Controller) -> None:
    async def body(a: Node) -> None:
        (other,) = await join_all(controller, "a")
        assert other.uid != a.uid
        assert not set(other.grant.segments) & set(a.grant.segments)
        with pytest.raises(LimpetError, match="several machines"):
            controller.ask("node.remove", node="a")
        controller.ask("node.remove", node=other.uid)
        await a.hello()

    nodes_do(controller, "a", body)


def test_new_hardware_takes_the_segments_and_the_pods_of_a_dead_machine(
    controller: Controller,
) -> None:
    pods = [InterfaceAddresses("limpet", "default", "web-0", "eth0", ("10.244.0.2",))]

    async def body(dead: Node, other: Node) -> None:
        await dead.report(7, pods, None)
        controller.ask("node.replace", node="a")
        (new,) = await join_all(controller, "a")
        assert new.grant.segments == dead.grant.segments
        assert new.grant.supersedes == (dead.uid,)
        assert new.joined is not None
        assert new.joined.pod_pages == 1
        async with new:
            assert await new.own_pods() == pods
        assert (await refused(dead.publish())).code is Code.REMOVED
        (third,) = await join_all(controller, "a")  # it was replaced once
        assert not set(third.grant.segments) & {*new.grant.segments, *other.grant.segments}

    nodes_do(controller, "ab", body)


# Presence


def test_a_node_cannot_write_the_presence_of_another(controller: Controller) -> None:
    async def body(a: Node, b: Node) -> None:
        refusal = await refused(a.publish(uid=b.uid))
        assert refusal.code is Code.NOT_YOURS
        stolen, a.key = a.key, b.key  # signed as b, sent as a
        assert (await refused(a.publish(uid=b.uid))).code is Code.NOT_YOURS
        assert (await refused(a.publish())).status == 400  # a's, signed as b
        a.key = stolen
        assert controller.ask("node.show", node="b")["presence"] is None

    nodes_do(controller, "ab", body)


def test_what_nodes_tell_each_other_only_is_refused_in_words(controller: Controller) -> None:
    async def body(node: Node) -> None:
        gone = seal(ABSENCE, Absence(node.uid, 1), node.key)
        refusal = await refused(node.publish_sealed(gone.sealed))
        assert refusal.code is Code.BAD_REQUEST
        assert f"publishes absence {node.uid}, which nodes tell each other" in str(refusal)
        part = seal(PODS, LabelledPods(node.uid, 0, 1), node.key)
        assert (await refused(node.publish_sealed(part.sealed))).code is Code.BAD_REQUEST
        assert await node.publish() == node.sequence

    nodes_do(controller, "a", body)


def test_an_older_presence_does_not_count_and_the_answer_says_what_to_jump_above(
    controller: Controller,
) -> None:
    async def body(node: Node) -> None:
        assert await node.publish(sequence=5) == 5
        assert await node.publish(sequence=5) == 5  # the same once more
        refusal = await refused(node.publish(sequence=4))
        assert refusal.code is Code.STALE
        assert refusal.refused.version == 5
        assert (await node.hello()).versions == {"presence": 5}

    nodes_do(controller, "a", body)


def test_two_machines_with_one_identity_are_told(controller: Controller) -> None:
    async def body(node: Node) -> None:
        await node.publish(boot_id="one")
        await node.publish(boot_id="two")
        assert (await refused(node.publish(boot_id="one"))).code is Code.CLONED
        assert await node.publish(boot_id="two") == node.sequence
        assert controller.ask("node.show", node="a")["state"] == "cloned"

    nodes_do(controller, "a", body)


def test_a_change_of_roles_is_signed_anew_and_every_watcher_hears_it(
    controller: Controller,
) -> None:
    async def body(a: Node, b: Node) -> None:
        await a.publish()
        async with b.watch() as lines:
            await until_bookmark(lines)
            before = a.grant
            answer = controller.ask("node.set", node="a", roles=["cloud", "relay"])
            assert (answer["roles"], answer["generation"]) == (["cloud", "relay"], 2)
            (entry, _) = await until_bookmark(lines)
        assert entry.document is not None
        heard = b.open(entry.document)
        assert {role.value for role in heard.roles} == {"cloud", "relay"}
        assert heard.generation == before.generation + 1
        assert heard.revision > before.revision
        assert heard.segments == before.segments

        controller.ask("node.set", node="a", add_roles=["cloud"])  # it has it: nothing to tell
        assert own_grant((await a.hello()).documents) == entry.document

    nodes_do(controller, "ab", body)


def test_a_node_is_not_left_without_a_role(controller: Controller) -> None:
    async def body(node: Node) -> None:
        with pytest.raises(LimpetError, match="at least one of edge, cloud, relay"):
            controller.ask("node.set", node="a", remove_roles=["edge"])
        assert own_grant((await node.hello()).documents) == node.grants[0]

    nodes_do(controller, "a", body)


# Watching


def test_a_watcher_gets_all_there_is_and_then_what_changes(controller: Controller) -> None:
    async def body(a: Node, b: Node) -> None:
        await b.publish()
        async with a.watch() as lines:
            found = await until_bookmark(lines)
            documents = [line.document for line in found if line.document is not None]
            kinds = [sealed.kind for sealed in documents]
            assert kinds == ["network", "grant", "grant", "presence"]
            assert {a.open(sealed).name for sealed in documents[1:3]} == {"a", "b"}
            await b.request_segments(4)
            (entry, _) = await until_bookmark(lines)
            assert entry.document == b.sealed
            await b.publish()
            # What it is checked with goes before it, whatever the watcher knows.
            (above, said, bookmark) = await until_bookmark(lines)
            assert above.document == b.sealed
            assert of_kind(said, PRESENCE) is not None
        controller.ask("node.label", node="b", add={"site": "x"})
        async with a.watch(bookmark.version) as lines:
            (entry, _) = await until_bookmark(lines)
            assert entry.document is not None
            assert a.open(entry.document).labels == {"site": "x"}

    nodes_do(controller, "ab", body)


def test_a_watcher_of_some_kinds_hears_of_these_alone(controller: Controller) -> None:
    async def body(a: Node, b: Node) -> None:
        async with a.watch(kinds="grant,network") as lines:
            found = await until_bookmark(lines)
            kinds = [line.document.kind for line in found if line.document is not None]
            assert kinds == ["network", "grant", "grant"]
            await b.publish()
            await b.request_segments(4)
            told = await anext(line.document async for line in lines if line.document is not None)
            assert told == b.sealed
        with pytest.raises(Refusal, match="secret") as caught:
            async with a.watch(kinds="grant,secret"):
                pass
        assert caught.value.status == 400

    nodes_do(controller, "ab", body)


@pytest.mark.parametrize("since", ["x", "abcd-7", "%00"])
def test_a_watch_from_a_strange_version_is_told_to_begin_anew(
    controller: Controller, since: str
) -> None:
    async def body(node: Node) -> None:
        async with node.watch() as lines:
            await until_bookmark(lines)
        with pytest.raises(Refusal) as caught:
            async with node.watch(since):
                pass
        assert caught.value.status == 410

    nodes_do(controller, "a", body)


def test_a_watch_goes_on_where_it_was_after_the_controller_was_started_anew(
    controller: Controller,
) -> None:
    async def body(a: Node, b: Node) -> None:
        async with a.watch() as lines:
            version = (await until_bookmark(lines))[-1].version
        await asyncio.gather(a.close(), b.close())
        await asyncio.to_thread(controller.kill)
        await asyncio.to_thread(controller.start)
        await b.publish()
        async with a.watch(version) as lines:
            (_, said, _) = await until_bookmark(lines)
        assert of_kind(said, PRESENCE) is not None

    nodes_do(controller, "ab", body)


# Pods


def test_reports_of_pods_add_up_and_a_gap_asks_for_all_of_them(controller: Controller) -> None:
    def pod(name: str, *addresses: str) -> InterfaceAddresses:
        return InterfaceAddresses("limpet", "default", name, "eth0", addresses)

    async def body(node: Node) -> None:
        assert await node.report(1, [pod("a", "10.244.0.2"), pod("b", "10.244.0.3")], None) == 1
        assert await node.report(2, [pod("a"), pod("c", "10.244.0.4")], 1) == 2
        assert await node.report(2, [pod("a"), pod("c", "10.244.0.4")], 1) == 2  # sent again
        refusal = await refused(node.report(9, [pod("d", "10.244.0.5")], 8))
        assert refusal.code is Code.STALE
        assert refusal.refused.version == 2
        found = controller.ask("pod.list")
        assert [each["pod"] for each in found["pods"]] == ["b", "c"]
        assert found["nodes"][0]["reported_at_s"] > 0
        assert controller.ask("node.show", node="a")["pods"] == 2
        absent = InterfaceAddresses("limpet", "default", "b", "eth0", ("10.244.0.3",), kept=True)
        assert await node.report(3, [absent], 2) == 3
        listed = controller.ask("pod.list")["pods"]
        assert [(each["pod"], each["kept"]) for each in listed] == [("b", True), ("c", False)]
        assert controller.ask("node.show", node="a")["pods"] == 1

    nodes_do(controller, "a", body)


# Strangers and garbage


def test_without_a_certificate_nothing_but_joining_is_possible(controller: Controller) -> None:
    async def body() -> None:
        insecure = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        insecure.check_hostname = False
        insecure.verify_mode = ssl.CERT_NONE
        node = Node(controller.url, "a")
        for verb, path in [
            ("POST", "/v1/hello"),
            ("POST", "/v1/show"),
            ("PUT", "/v1/documents"),
            ("POST", "/v1/segments"),
            ("GET", "/v1/pods"),
            ("POST", "/v1/pods"),
            ("GET", "/v1/watch"),
        ]:
            refusal = await refused(node.fetch_as_stranger(verb, path, b"{}", insecure))
            assert refusal.code is Code.NO_CERTIFICATE, path
        assert b"true" in await node.fetch_as_stranger("GET", "/healthz", b"", insecure)

    asyncio.run(body())


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"\xff\xfe", b"null", b"[" * 100_000, b'{"generation":"x","versions":[]}'],
    ids=lambda body: repr(body[:10]),
)
def test_garbage_is_answered_in_words(controller: Controller, body: bytes) -> None:
    async def ask(node: Node) -> None:
        for verb, path in [
            ("POST", "/v1/hello"),
            ("POST", "/v1/show"),
            ("PUT", "/v1/documents"),
            ("POST", "/v1/segments"),
            ("POST", "/v1/pods"),
            ("POST", "/v1/join"),
        ]:
            refusal = await refused(node.fetch(verb, path, body))
            assert refusal.status in (400, 413), path
            assert refusal.refused.error.startswith("read ")
        await node.hello()

    nodes_do(controller, "a", ask)
    assert "Traceback" not in controller.log.read_text()


def test_a_client_that_sends_megabytes_is_cut_off(controller: Controller) -> None:
    async def body(node: Node) -> None:
        assert node.joined is not None
        context = node.context(node.joined.ca, node.joined.certificate)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", controller.port, ssl=context, server_hostname=SERVER_NAME
        )
        writer.write(b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        answer = asyncio.ensure_future(reader.readline())
        sent = 0
        with contextlib.suppress(ConnectionError):
            while not answer.done() and sent < 64 << 20:
                writer.write(b" " * 65536)
                await writer.drain()
                await asyncio.sleep(0)  # while the other end reads, nothing else lets us hear it
                sent += 65536
        assert b" 413 " in await answer
        assert sent < 16 << 20
        writer.transport.abort()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        await node.hello()

    nodes_do(controller, "a", body)


def test_a_connection_that_is_reset_within_a_request_is_no_failure_of_the_controller(
    controller: Controller,
) -> None:
    async def body(node: Node) -> None:
        assert node.joined is not None
        context = node.context(node.joined.ca, node.joined.certificate)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", controller.port, ssl=context, server_hostname=SERVER_NAME
        )
        writer.write(
            b"POST /v1/hello HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: 9\r\n\r\n"
        )
        assert b" 100 " in await reader.readline()  # it waits for the body
        linger_for_nothing = struct.pack("ii", 1, 0)
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_for_nothing)
        writer.transport.abort()
        await until(lambda: "path=/v1/hello" in controller.log.read_text())

    nodes_do(controller, "a", body)
    assert "level=error" not in controller.log.read_text()


def test_bytes_that_are_no_tls_and_no_http_leave_the_controller_as_it_was(
    controller: Controller,
) -> None:
    async def body(node: Node) -> None:
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 40, b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", controller.port)
            writer.write(data)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await node.hello()

    nodes_do(controller, "a", body)
    assert "Traceback" not in controller.log.read_text()


async def open_tls(controller: Controller) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As a stranger, without a certificate."""
    insecure = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    insecure.check_hostname = False
    insecure.verify_mode = ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", controller.port, ssl=insecure)


@contextlib.asynccontextmanager
async def tls(
    controller: Controller,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await open_tls(controller)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


def test_a_body_that_does_not_come_in_whole_is_waited_for_no_longer(
    make_controller: Callable[..., Controller],
) -> None:
    controller = make_controller(patience_s=0.2).start()

    async def body() -> None:
        async with tls(controller) as (reader, writer):
            writer.write(b'POST /v1/join HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{"tok')
            assert b" 400 " in await reader.readline()
            assert b"no whole body came within 0.2 s" in await reader.read()

    asyncio.run(body())


@pytest.mark.parametrize("data", [b"", b"POST /v1/join HTTP/1.1\r\nHost: x\r\n"])
def test_a_connection_that_asks_nothing_is_closed(
    make_controller: Callable[..., Controller], data: bytes
) -> None:
    controller = make_controller(idle_s=0.2).start()

    async def body() -> None:
        async with tls(controller) as (reader, writer):
            with contextlib.suppress(ConnectionError):  # it may be closed before it has asked
                writer.write(data)
                assert await reader.read() == b""

    asyncio.run(body())


async def first_refusal(makes: Iterable[Awaitable[Any]]) -> tuple[int, Refusal]:
    """Of all that are asked one after the other; and how many were answered before."""
    for answered, work in enumerate(makes):
        try:
            await work
        except Refusal as error:
            return answered, error
    raise AssertionError("nothing was refused")


def test_a_node_that_floods_is_put_off_and_no_other_node(controller: Controller) -> None:
    async def body(flooding: Node, other: Node) -> None:
        # The same each time, which is not written: a slow disk does not hold the flood up.
        taken, refusal = await first_refusal(flooding.publish(sequence=1) for _ in range(5000))
        assert taken >= PUBLISHED_AT_ONCE.most
        assert (refusal.status, refusal.code) == (503, Code.TRY_AGAIN)
        assert "documents come too often: 30 presences a minute" in str(refusal)
        assert await other.publish() == other.sequence
        # Of its pods it may tell none the less.
        taken, refusal = await first_refusal(flooding.report(1, [], None) for _ in range(5000))
        assert taken >= REPORTS_AT_ONCE.most
        assert "reports of pods come too often" in str(refusal)
        assert await other.report(0, [], None) == 0

    nodes_do(controller, "ab", body)


def large_policy(number: int) -> dict[str, Any]:
    blocks = [{"ipBlock": {"cidr": f"10.{n >> 8}.{n & 255}.0/24"}} for n in range(700)]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"p{number}", "namespace": "shop"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": blocks}]},
    }


def test_a_watcher_that_takes_nothing_is_let_go_and_the_others_hear_all(
    make_controller: Callable[..., Controller],
) -> None:
    # Long enough for whoever reads, whatever else the machine does meanwhile.
    controller = make_controller(patience_s=5, log_level="info").start()

    async def body(slow: Node, quick: Node) -> None:
        def was_let_go() -> bool:
            lines = controller.log.read_text().splitlines()
            return any("a watch ended" in line and slow.uid in line for line in lines)

        assert slow.joined is not None
        context = slow.context(slow.joined.ca, slow.joined.certificate)
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect(("127.0.0.1", controller.port))
        narrow.setblocking(False)
        _, writer = await asyncio.open_connection(
            sock=narrow, ssl=context, server_hostname=SERVER_NAME, limit=1024
        )
        writer.write(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\nLimpet-Revision: 0\r\n\r\n")
        async with quick.watch() as lines:
            await until_bookmark(lines)
            # More than all buffers on the way hold.
            number = 0
            while number < 400 and not was_let_go():
                number += 4
                policies = [large_policy(each) for each in range(number, number + 4)]
                await asyncio.to_thread(controller.ask, "policy.apply", documents=policies)
                waited_for = {f"NetworkPolicy/shop/p{each}" for each in range(number, number + 4)}
                async for line in lines:
                    if (sealed := of_kind(line, POLICY)) is not None:
                        waited_for.discard(read_sealed(sealed, KINDS).name)
                    if not waited_for:
                        break
        await until(was_let_go)
        writer.transport.abort()

    nodes_do(controller, "ab", body)


def test_a_thousand_connections_that_ask_nothing_keep_no_node_out(controller: Controller) -> None:
    async def body(node: Node) -> None:
        before = resident_bytes(controller.pid)
        idle = [
            await asyncio.open_connection("127.0.0.1", controller.port) for _ in range(1000)
        ] + [await open_tls(controller) for _ in range(300)]
        await node.close()
        await node.hello()
        (other,) = await join_all(controller, "other")
        await other.close()
        grown = resident_bytes(controller.pid) - before
        assert grown < 100 << 20
        for _, writer in idle:
            writer.transport.abort()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        nodes_do(controller, "a", body)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if "VmRSS" in line).split()[1]) << 10


def test_what_is_not_there_is_told_in_json(controller: Controller) -> None:
    async def body(node: Node) -> None:
        assert (await refused(node.fetch("GET", "/v1/nothing", b""))).code is Code.NOT_FOUND
        assert (await refused(node.fetch("DELETE", "/v1/documents", b""))).code is Code.NOT_FOUND
        assert (await refused(node.fetch("POST", "/v1/segments", b"{}"))).status == 400

    nodes_do(controller, "a", body)
