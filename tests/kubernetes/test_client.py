"""What the client asks, what it understands, and its words for what goes wrong."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from limpet.base.http.connection import LinkError, SilenceError
from limpet.cluster.api import SERVER_NAME
from limpet.kubernetes.access.access import Access, AccessError, parse_server
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import (
    BusyError,
    ExistsError,
    FutureVersionError,
    GoneError,
    NoResourceError,
    NotFoundError,
    ObjectConflictError,
    StatusError,
)
from limpet.kubernetes.kinds.objects import (
    CONFIG_MAPS,
    SECRETS,
    ConfigMap,
    Metadata,
    Resource,
    Secret,
)
from limpet.kubernetes.lists import Selection
from tests.beds.rogue import (
    STREAM,
    Authority,
    Serve,
    answer,
    chunk,
    says,
    serving,
    take_request,
)

GRANTS = Resource("NodeGrant", "nodegrants", ConfigMap, "limpet.dev", "v1alpha1")

T = TypeVar("T")


def against(
    serve: Serve,
    work: Callable[[Client], Awaitable[T]],
    *,
    authority: Authority | None = None,
    patience_s: float = 10.0,
    **access: Any,
) -> T:
    """What `work` returns with a client of a server that does as `serve` says."""

    async def run() -> T:
        context = authority.server_context() if authority is not None else None
        async with serving(serve, context) as at:
            server = parse_server(f"http{'s' if context else ''}://{at}")
            client = Client(Access(server, "test", **access), answer_s=patience_s)
            try:
                return await work(client)
            finally:
                client.close()

    return asyncio.run(run())


def answering(requests: list[bytes], *answers: bytes) -> Serve:
    """One after the other on whatever connection; requests are kept."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            requests.append(await take_request(reader))
            writer.write(left.pop(0))
            await writer.drain()

    return serve


def said(value: object, status: str = "200 OK") -> bytes:
    return answer(json.dumps(value).encode(), status)


def refused(code: int, reason: str, message: str, **details: Any) -> bytes:
    status = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return said({**status, "details": details}, f"{code} {reason}")


async def get(client: Client) -> ConfigMap:
    return await client.get(GRANTS, "node-1")


# What is asked and understood


def test_an_object_comes_with_what_is_kept_of_it_when_it_is_written_back() -> None:
    requests: list[bytes] = []
    stored = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "authority",
            "resourceVersion": "7",
            "finalizers": ["a/b"],
            "ownerReferences": [{"kind": "X", "name": "y", "uid": "z"}],
            "managedFields": [{"manager": "kubectl"}],
        },
        "data": {"key": "AAE="},
        "type": "limpet.dev/authority",
    }
    serve = answering(requests, said(stored), said(stored))

    async def work(client: Client) -> Secret:
        found = await client.get(SECRETS, "authority", namespace="limpet")
        return await client.replace(SECRETS, found, namespace="limpet")

    found = against(serve, work)
    assert found.data == {"key": b"\x00\x01"}
    assert requests[0].startswith(b"GET /api/v1/namespaces/limpet/secrets/authority HTTP/1.1\r\n")
    assert requests[1].startswith(b"PUT /api/v1/namespaces/limpet/secrets/authority HTTP/1.1\r\n")
    sent = json.loads(requests[1].partition(b"\r\n\r\n")[2])
    del stored["metadata"]["managedFields"]  # type: ignore[attr-defined]
    assert sent == stored


def test_a_list_comes_page_by_page_and_nonsense_in_it_is_passed_over() -> None:
    requests: list[bytes] = []
    one = {"metadata": {"name": "one"}, "data": {"a": "b"}}
    bad = {"metadata": {"name": "bad"}, "data": 7}
    serve = answering(
        requests,
        said({"metadata": {"resourceVersion": "9", "continue": "on=1"}, "items": [one, bad, 5]}),
        said({"metadata": {"resourceVersion": "9"}, "items": None}),
    )

    async def work(client: Client) -> list[Any]:
        return [
            page async for page in client.pages(GRANTS, selection=Selection(labels="a=b"), limit=3)
        ]

    first, second = against(serve, work)
    assert [each.metadata.name for each in first.items] == ["one"]
    assert [each.name for each in first.unreadable] == ["bad", "an object without a name"]
    assert (first.next, second.items, second.resource_version) == ("on=1", [], "9")
    assert b"GET /apis/limpet.dev/v1alpha1/nodegrants?limit=3&labelSelector=a%3Db " in requests[0]
    assert b"continue=on%3D1" in requests[1]


def test_where_objects_are_large_pages_become_smaller() -> None:
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await take_request(reader)
            limit = int(head.partition(b"limit=")[2].split(b"&")[0].split(b" ")[0])
            asked.append(limit)
            item = {"metadata": {"name": "x"}, "data": {"a": "b" * (1 << 20)}}
            writer.write(said({"metadata": {}, "items": [item] * limit}))
            await writer.drain()

    async def work(client: Client) -> int:
        return sum([len(page.items) async for page in client.pages(GRANTS, limit=16)])

    assert against(serve, work) == 1
    assert asked == [16, 4, 1]


def test_a_cache_is_asked_for_whole_lists_and_to_keep_them() -> None:
    """It takes an answer to a list for all that there is: a page would stand for the whole."""
    requests: list[bytes] = []
    items = [{"metadata": {"name": "x"}, "data": {"a": "b" * (1 << 20)}}] * 6
    serve = answering(
        requests, said({"metadata": {}, "items": items}), said({"metadata": {}, "items": []})
    )

    async def work(client: Client) -> int:
        found = sum([len(page.items) async for page in client.pages(GRANTS)])
        await client.check_version(GRANTS, "7")
        return found

    assert against(serve, work, is_cache=True) == 6
    assert len(requests) == 2
    for request in requests:
        assert b"limit=" not in request
        assert b"\r\nEdge-Cache: true\r\n" in request


def test_what_is_deleted_is_what_was_seen() -> None:
    requests: list[bytes] = []
    serve = answering(requests, said({"kind": "Status", "status": "Success"}))

    against(serve, lambda client: client.delete(GRANTS, "a", uid="u-1", resource_version="5"))

    assert requests[0].startswith(b"DELETE /apis/limpet.dev/v1alpha1/nodegrants/a HTTP/1.1\r\n")
    sent = json.loads(requests[0].partition(b"\r\n\r\n")[2])
    assert sent["preconditions"] == {"uid": "u-1", "resourceVersion": "5"}


def test_a_patch_of_the_status_goes_to_the_status() -> None:
    requests: list[bytes] = []
    serve = answering(requests, said({"metadata": {"name": "a"}}))

    against(serve, lambda client: client.patch(GRANTS, "a", {"status": {"x": None}}, status=True))

    assert requests[0].startswith(b"PATCH /apis/limpet.dev/v1alpha1/nodegrants/a/status HTTP/1.1")
    assert b"content-type: application/merge-patch+json" in requests[0].lower()
    assert requests[0].endswith(b'{"status": {"x": null}}')


def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    requests: list[bytes] = []
    token = tmp_path / "token"
    token.write_text("first\n")
    serve = answering(requests, said({}), said({}), said({}))

    async def work(client: Client) -> None:
        await get(client)
        fresh = tmp_path / "fresh"
        fresh.write_text("second\n")
        fresh.rename(token)  # as the kubelet does
        await get(client)
        token.write_text("")
        with pytest.raises(AccessError, match=f"use the token in {token} of test: it holds no tok"):
            await get(client)

    against(serve, work, token_file=token, token="never")
    heads = [head.lower() for head in requests]
    assert b"authorization: bearer first" in heads[0]
    assert b"authorization: bearer second" in heads[1]


def test_a_watch_hands_on_lines_as_they_come_and_ends_with_the_server() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"watch=1" in await take_request(reader)
        writer.write(STREAM + chunk(b'{"a":1}\n{"b"') + chunk(b":2}\n"))
        writer.write(chunk(b""))
        await writer.drain()

    async def work(client: Client) -> list[bytes]:
        watch = client.watch(GRANTS, "7", for_s=60, silence_s=10)
        async with aclosing(watch) as parts:
            return [line async for lines in parts for line in lines]

    assert against(serve, work) == [b'{"a":1}', b'{"b":2}']


def test_a_name_that_leads_elsewhere_is_not_asked_for() -> None:
    with pytest.raises(ValueError, match="no name of an object"):
        CONFIG_MAPS.path("../secrets/x", namespace="limpet")
    assert CONFIG_MAPS.path("a b?c", namespace="n") == "/api/v1/namespaces/n/configmaps/a%20b%3Fc"


# TLS


def test_the_server_is_known_by_its_authority_whatever_the_clock_says(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    serve = answering([], said({"metadata": {"name": "node-1"}}))

    found = against(serve, get, authority=authority, ca=authority.ca.encode(), tls_name=SERVER_NAME)

    assert found.metadata.name == "node-1"


def test_a_server_of_another_authority_gets_no_token(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    requests: list[bytes] = []

    with pytest.raises(LinkError, match=r"not of the authority.*another cluster"):
        against(
            answering(requests, said({})),
            get,
            authority=authority,
            ca=other.ca.encode(),
            token="secret",
            tls_name=SERVER_NAME,
        )
    assert requests == []


def test_a_certificate_that_is_inline_is_shown_to_the_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    authority.identity("127.0.0.1:1")
    shown: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        shown.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.write(said({}))
        await writer.drain()

    async def run() -> None:
        context = authority.server_context()
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VerifyFlags(0x200000)
        context.load_verify_locations(cadata=authority.ca)
        async with serving(serve, context) as at:
            certificate = (authority.folder / "node.pem").read_bytes()
            key = (authority.folder / "node.key.pem").read_bytes()
            access = Access(
                parse_server(f"https://{at}"),
                "test",
                ca=authority.ca.encode(),
                certificate=certificate,
                key=key,
                tls_name=SERVER_NAME,
            )
            client = Client(access)
            await get(client)
            client.close()
            assert shown == [ssl.PEM_cert_to_DER_cert(certificate.decode())]

    asyncio.run(run())


@pytest.mark.parametrize("was_good", [True, False])
def test_a_certificate_that_is_renewed_on_the_disk_is_shown_from_the_next_request_on(
    tmp_path: Path, was_good: bool
) -> None:
    """Servers check it with each request, and keep the connection of who is refused."""
    authority = Authority(tmp_path / "pki")
    authority.identity("127.0.0.1:1")
    node = authority.folder / "node.pem"
    good = [node.read_text()] if was_good else []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        while True:
            await take_request(reader)
            is_good = ssl.DER_cert_to_PEM_cert(shown) in good
            writer.write(said({}) if is_good else refused(401, "Unauthorized", "expired"))
            await writer.drain()

    async def run() -> None:
        context = authority.server_context()
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VerifyFlags(0x200000)
        context.load_verify_locations(cadata=authority.ca)
        async with serving(serve, context) as at:
            access = Access(
                parse_server(f"https://{at}"),
                "test",
                ca=authority.ca.encode(),
                certificate=node,
                key=authority.folder / "node.key.pem",
                tls_name=SERVER_NAME,
            )
            client = Client(access)
            if was_good:
                await get(client)
            else:
                with pytest.raises(StatusError, match="expired"):
                    await get(client)
            authority.identity("127.0.0.1:1")
            good[:] = [node.read_text()]
            await get(client)
            client.close()

    asyncio.run(run())


def test_who_is_refused_asks_again_by_another_connection() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        is_first = connections == 1
        while True:
            await take_request(reader)
            writer.write(refused(401, "Unauthorized", "who?") if is_first else said({}))
            await writer.drain()

    async def work(client: Client) -> None:
        with pytest.raises(StatusError, match=r"who\?"):
            await get(client)
        await get(client)

    against(serve, work)
    assert connections == 2


@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAA"])
def test_files_that_hold_no_certificate_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(content)

    with pytest.raises(AccessError, match=f"certificates in {path} of test: .*put a good one"):
        against(says(b""), get, authority=Authority(tmp_path / "pki"), ca=path)
    with pytest.raises(AccessError, match="certificates in /not/there of test: No such file"):
        against(says(b""), get, authority=Authority(tmp_path / "pki2"), ca=Path("/not/there"))


# Refusals


@pytest.mark.parametrize(
    ("code", "reason", "message", "details", "kind", "words"),
    [
        (404, "NotFound", 'x "node-1" not found', {"name": "node-1"}, NotFoundError, "not found"),
        (404, "NotFound", "could not find", {}, NoResourceError, "kubectl apply -f deploy/crds"),
        (409, "AlreadyExists", "already exists", {"name": "x"}, ExistsError, "already"),
        (409, "Conflict", "has been modified", {"name": "x"}, ObjectConflictError, "modified"),
        (410, "Expired", "too old resource version", {}, GoneError, "too old"),
        (
            403,
            "Forbidden",
            'User "a" cannot list',
            {},
            StatusError,
            'User "a" cannot list.*lacks this',
        ),
        (401, "Unauthorized", "Unauthorized", {}, StatusError, "does not know who asks"),
        (422, "Invalid", "spec.x: bad", {}, StatusError, "spec.x: bad"),
        (429, "TooManyRequests", "later", {"retryAfterSeconds": 3}, BusyError, "later"),
        (
            504,
            "Timeout",
            "Timeout: Too large resource version: 9, current: 3",
            {"causes": [{"reason": "ResourceVersionTooLarge"}]},
            FutureVersionError,
            "Too large",
        ),
    ],
)
def test_a_refusal_has_its_kind_and_says_what_to_do(
    code: int, reason: str, message: str, details: Any, kind: type[StatusError], words: str
) -> None:
    with pytest.raises(kind, match=f"get nodegrants.limpet.dev node-1: .*{words}") as caught:
        against(answering([], refused(code, reason, message, **details)), get)
    assert caught.value.status.code == code
    assert caught.value.retry_after_s == (details.get("retryAfterSeconds") or None)


def test_a_path_that_the_server_does_not_know_means_that_the_definitions_are_missing() -> None:
    with pytest.raises(NoResourceError, match="apply Limpet's definitions"):
        against(answering([], answer(b"404 page not found\n", "404 Not Found")), get)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"<html>", b"\xff\xfe", b'{"metadata":7}', b"[" * 100_000]
)
def test_what_is_no_object_is_told_as_a_stranger(body: bytes) -> None:
    with pytest.raises(LinkError, match=r"not what such a server says"):
        against(answering([], answer(body)), get)


def test_a_server_that_is_silent_is_given_up_and_one_that_is_not_there_is_told() -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(SilenceError, match=r"the API server at http://127.0.0.1:\d+ for /apis"):
        against(silent, get, patience_s=0.1)

    async def nobody() -> None:
        async with serving(silent, None) as at:
            pass
        await get(Client(Access(parse_server(f"http://{at}"), "test")))

    with pytest.raises(LinkError, match="nothing listens there"):
        asyncio.run(nobody())


def test_a_write_is_not_repeated_when_a_kept_connection_ends_and_a_read_is() -> None:
    """The server may have done it: a second create would say that the object is there."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await take_request(reader))
        writer.write(said({}))
        await writer.drain()
        requests.append(await take_request(reader))
        writer.close()

    async def work(client: Client) -> None:
        await get(client)
        with pytest.raises(LinkError, match="closed the connection"):
            await client.create(GRANTS, ConfigMap(metadata=Metadata(name="a")))
        await get(client)
        await get(client)

    against(serve, work)
    assert [head.split(b" ")[0] for head in requests] == [b"GET", b"POST", b"GET", b"GET", b"GET"]
