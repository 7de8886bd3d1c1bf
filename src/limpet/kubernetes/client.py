"""Objects of an API server, typed: read, listed page by page, written, watched."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from limpet.base.bounds.servers import CACHED_LIST, WATCH_LINE
from limpet.base.bounds.tenants import LIST_PAGES
from limpet.base.decoding import Decoder, json_decoder
from limpet.base.errors import LimpetError
from limpet.base.http.connection import Connection, Headers, HttpAnswer, LinkError, TooLargeError
from limpet.base.http.kept import KeptConnections
from limpet.base.http.lines import read_lines, read_whole
from limpet.kubernetes.access.access import Access
from limpet.kubernetes.access.credentials import Credentials
from limpet.kubernetes.access.refused_rights import RefusedRights
from limpet.kubernetes.access.server_clock import ServerClock
from limpet.kubernetes.errors import refusal
from limpet.kubernetes.kinds.objects import AnyViewed, Object, Resource, Status
from limpet.kubernetes.lists import ALL, ListDocument, PageOfList, Selection, read_parts

PAGE = 100
"""Objects of one answer: some 200 KB, freed before the next is asked for."""
ANSWER_S = 20.0
_CONNECTIONS = 4
_UNAUTHORIZED = 401
_USER_AGENT = "limpet"

AnyObject = TypeVar("AnyObject", bound=Object)


class Client:
    """For one event loop. Every call raises LinkError, AccessError, and StatusError as said."""

    def __init__(self, access: Access, *, answer_s: float = ANSWER_S) -> None:
        """`answer_s`: for a whole answer. Nothing is read or sent before the first request."""
        self.access = access
        self._answer_s = answer_s
        self._credentials = Credentials(access)
        self._refused = RefusedRights()
        self._clock = ServerClock()
        self._requests = KeptConnections(self._connect, most=_CONNECTIONS)

    def close(self) -> None:
        """Ends the connections of requests; the next request makes one."""
        self._requests.close()

    # Reading

    async def get(
        self, resource: Resource[AnyViewed], name: str, *, namespace: str = ""
    ) -> AnyViewed:
        """Raises: NotFoundError, StatusError."""
        path = resource.path(name, namespace=namespace)
        return await self._ask("GET", path, resource, f"get {resource} {name}")

    async def list_page(
        self,
        resource: Resource[AnyViewed],
        *,
        selection: Selection = ALL,
        limit: int = PAGE,
        go_on: str = "",
    ) -> PageOfList[AnyViewed]:
        """One part of a list; `go_on`: `next` of the part before.

        Raises: GoneError when `go_on` is too old; TooLargeError for a part that is too large.
        """
        found = await self._list(resource, selection, limit, go_on)
        return next(read_parts(found, resource, max(len(found.items or ()), 1)))

    async def list_parts(
        self,
        resource: Resource[AnyViewed],
        *,
        selection: Selection = ALL,
        limit: int = PAGE,
        go_on: str = "",
    ) -> Iterator[PageOfList[AnyViewed]]:
        """As `list_page`, no more than `limit` objects at a time: a cache answers with all that
        there are, and what is read of 10,000 together leaves holes in memory."""
        return read_parts(await self._list(resource, selection, limit, go_on), resource, limit)

    async def _list(
        self, resource: Resource[Any], selection: Selection, limit: int, go_on: str
    ) -> ListDocument:
        query = {**({} if self.is_cache else {"limit": str(limit)}), **selection.query}
        if go_on:
            query["continue"] = go_on
        path = f"{resource.path(namespace=selection.namespace)}?{urlencode(query)}"
        answer = await self._answer("GET", path, resource, f"list {resource}")
        try:
            found: ListDocument = _decoder(ListDocument).decode(answer.body)
        except msgspec.MsgspecError as error:
            raise self._stranger(f"list {resource}", error) from error
        return found

    async def check_version(
        self,
        resource: Resource[Any],
        resource_version: str,
        *,
        selection: Selection = ALL,
    ) -> None:
        """Returns when the server has this version or a later one.

        Raises: FutureVersionError when it has not, as after it was put back from a copy.
        """
        query = {
            **({} if self.is_cache else {"limit": "1"}),
            "resourceVersion": resource_version,
            "resourceVersionMatch": "NotOlderThan",
            **selection.query,
        }
        path = f"{resource.path(namespace=selection.namespace)}?{urlencode(query)}"
        await self._answer("GET", path, resource, f"list {resource}")

    async def pages(
        self,
        resource: Resource[AnyViewed],
        *,
        selection: Selection = ALL,
        limit: int = PAGE,
    ) -> AsyncGenerator[PageOfList[AnyViewed], None]:
        """All that is there, part by part, smaller ones where objects are large.

        Raises: GoneError when it took too long between two parts: begin again; LimpetError for a
        list without an end.
        """
        go_on = ""
        for _ in range(LIST_PAGES.most):
            try:
                page = await self.list_page(resource, selection=selection, limit=limit, go_on=go_on)
            except TooLargeError:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            yield page
            go_on = page.next
            if not go_on:
                return
        raise LimpetError(f"list {resource}: more than {LIST_PAGES.most:,} {LIST_PAGES.unit}")

    async def watch(
        self,
        resource: Resource[AnyViewed],
        resource_version: str,
        *,
        selection: Selection = ALL,
        for_s: float,
        silence_s: float,
    ) -> AsyncGenerator[list[bytes], None]:
        """Lines as they come, each time all that are there (`watch_event.read_event` reads them);
        first none, when the server has agreed.

        It ends after `for_s` at the latest. Raises: GoneError, FutureVersionError, StatusError
        before the first line; LinkError, also when nothing comes for `silence_s`.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(int(for_s)),
            **selection.query,
        }
        path = resource.path(namespace=selection.namespace)
        what = f"watch {resource}"
        connection = await self._connect()
        try:
            status, chunks = await connection.stream(
                f"{self.access.server.path}{path}?{urlencode(query)}",
                headers=self._headers(),
                timeout_s=self._answer_s,
                silence_s=silence_s,
            )
            async with aclosing(chunks):
                if status != 200:
                    body = await read_whole(chunks, most_bytes=WATCH_LINE.most)
                    self.check(HttpAnswer(status, body), resource, what)
                self._refused.granted(what)
                self._clock.tell(connection.date, time.monotonic())
                yield []
                async with aclosing(read_lines(chunks, most_bytes=WATCH_LINE.most)) as parts:
                    async for lines in parts:
                        yield lines
        except ValueError as error:
            raise self._stranger(what, error) from error
        finally:
            connection.close()

    # Writing

    async def create(
        self, resource: Resource[AnyObject], item: AnyObject, *, namespace: str = ""
    ) -> AnyObject:
        """As it is then. Raises: ExistsError, StatusError.

        After a LinkError it may have been done nevertheless, here and in what follows.
        """
        path = resource.path(namespace=namespace)
        what = f"create {resource} {item.metadata.name}"
        return await self._ask("POST", path, resource, what, body=_encode(resource, item))

    async def replace(
        self,
        resource: Resource[AnyObject],
        item: AnyObject,
        *,
        namespace: str = "",
        status: bool = False,
    ) -> AnyObject:
        """As it is then. `status`: its status, and nothing else.

        Raises: ConflictError where its `resource_version` is not the newest; NotFoundError.
        """
        name = item.metadata.name
        path = resource.path(name, namespace=namespace, sub="status" if status else "")
        what = f"replace {resource} {name}"
        return await self._ask("PUT", path, resource, what, body=_encode(resource, item))

    async def patch(
        self,
        resource: Resource[AnyViewed],
        name: str,
        changes: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        status: bool = False,
    ) -> AnyViewed:
        """As it is then. `changes`: a JSON merge patch (RFC 7386: None takes a field away), or a
        list of the operations of a JSON patch (RFC 6902).

        Raises: ConflictError where `changes` has a `resourceVersion` that is not the newest;
        StatusError (422) where a "test" of it does not hold.
        """
        path = resource.path(name, namespace=namespace, sub="status" if status else "")
        return await self._ask(
            "PATCH",
            path,
            resource,
            f"patch {resource} {name}",
            body=json.dumps(changes).encode(),
            form=f"application/{'merge' if isinstance(changes, Mapping) else 'json'}-patch+json",
        )

    async def delete(
        self,
        resource: Resource[AnyViewed],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        """`uid`, `resource_version`: only if it is this one.

        Raises: NotFoundError; ConflictError where it is another.
        """
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if given := {key: value for key, value in conditions.items() if value}:
            options["preconditions"] = given
        path = resource.path(name, namespace=namespace)
        body = json.dumps(options).encode()
        await self._answer("DELETE", path, resource, f"delete {resource} {name}", body=body)

    # One request

    async def _ask(
        self,
        verb: str,
        path: str,
        resource: Resource[AnyViewed],
        what: str,
        *,
        body: bytes = b"",
        form: str = "application/json",
    ) -> AnyViewed:
        answer = await self._answer(verb, path, resource, what, body=body, form=form)
        try:
            found: AnyViewed = _decoder(resource.type).decode(answer.body)
        except msgspec.MsgspecError as error:
            raise self._stranger(what, error) from error
        return found

    async def _answer(
        self,
        verb: str,
        path: str,
        resource: Resource[Any],
        what: str,
        *,
        body: bytes = b"",
        form: str = "application/json",
    ) -> HttpAnswer:
        headers = [("Content-Type", form)] if body else []
        answer = await self.ask(verb, path, body=body, headers=headers)
        self.check(answer, resource, what)
        return answer

    async def ask(
        self, verb: str, path: str, *, body: bytes = b"", headers: Headers = ()
    ) -> HttpAnswer:
        """Whatever is answered, for requests that are none of the above; a write is sent once."""
        if self._credentials.are_renewed:
            self.close()
        answer = await self._requests.request(
            verb,
            self.access.server.path + path,
            body=body,
            headers=[*self._headers(), *headers],
            timeout_s=self._answer_s,
            once=verb != "GET",
        )
        self._clock.tell(answer.date, time.monotonic())
        if answer.status == _UNAUTHORIZED:
            self.close()  # it stays with the certificate that it was opened with
        return answer

    async def upgrade(
        self, path: str, headers: Headers
    ) -> tuple[Connection, HttpAnswer, dict[str, str]]:
        """A connection of its own, which the caller closes, and what `Connection.upgrade` says."""
        connection = await self._connect()
        # Servers that would answer in another protocol say that they have no JSON.
        own = [each for each in self._headers() if each[0] != "Accept"]
        answer, said = await connection.upgrade(
            self.access.server.path + path,
            headers=[*own, *headers],
            timeout_s=self._answer_s,
        )
        return connection, answer, said

    def check(self, answer: HttpAnswer, resource: Resource[Any], what: str) -> None:
        """Raises: StatusError where the answer is no success; `what`: as "list nodes"."""
        if 200 <= answer.status < 300:
            self._refused.granted(what)
            return
        try:
            status = _decoder(Status).decode(answer.body)
        except msgspec.MsgspecError:
            status = Status()  # in words, as for a path that it does not know
        if not status.message:
            message = f"HTTP status {answer.status} {answer.body[:200].decode(errors='replace')}"
            status = msgspec.structs.replace(status, message=message.strip())
        status = msgspec.structs.replace(status, code=answer.status)
        lasts = answer.status != 403 or self._refused.refused(what, time.monotonic())
        raise refusal(what, resource, status, retry_after_s=answer.retry_after_s, lasts=lasts)

    def _headers(self) -> Headers:
        fixed = [("Accept", "application/json"), ("User-Agent", _USER_AGENT)]
        # YurtHub keeps what it answers to whoever says so, whatever its list of agents is.
        asked = [("Edge-Cache", "true")] if self.is_cache else []
        return [*fixed, *asked, *self._credentials.headers()]

    @property
    def clock_ahead_s(self) -> float:
        """How far this machine's clock is ahead of the API server's, if it is wrong by minutes;
        negative: behind. A cache on this machine has the same clock."""
        return 0.0 if self.is_cache else self._clock.ahead_s(time.time(), time.monotonic())

    @property
    def is_cache(self) -> bool:
        """Whether the server is one on this machine: what the last answer to a list held is for it
        all that there is, so it must not be asked for parts."""
        return self.access.is_cache

    async def _connect(self) -> Connection:
        connection = await Connection.open(self._credentials.server())
        if self.is_cache:
            connection.most_answer_bytes = CACHED_LIST.most
        return connection

    def _stranger(self, what: str, error: Exception) -> LinkError:
        return LinkError(
            f"{what}: what the API server at {self.access.server} says is not what such a server "
            f"says: {error} (is something else there, or a cache of another version?)"
        )


@cache
def _decoder(kind: type[Any]) -> Decoder[Any]:
    return json_decoder(kind)


def _encode(resource: Resource[Any], item: Object) -> bytes:
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    return msgspec.json.encode({**head, **msgspec.to_builtins(item)})
