"""A controller in a process of its own, and nodes that talk to it over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from limpet.cluster import api
from limpet.cluster.documents import Kind, Known, Sealed
from limpet.cluster.keys import public_key_of, uid_of
from limpet.cluster.kinds import GRANT, KINDS, NETWORK
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.merge import merge
from limpet.cluster.seal import open_sealed
from limpet.controller.admin.client import call
from limpet.controller.serving import CheckRights, serve
from limpet.controller.settings import load_settings
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.sqlite import SqliteStore
from limpet.lab.files import write_settings
from limpet.lab.launch import Process, launcher
from tests.unit.cluster_values import seal_presence
from tests.waiting import PATIENCE_S

T = TypeVar("T")
_HOLDERS: list[socket.socket] = []


@contextlib.asynccontextmanager
async def served_here(
    controller: Controller, check_rights: CheckRights | None = None
) -> AsyncIterator[Cluster]:
    """The controller in this process, with what a test has registered in it."""
    controller.write_config()
    settings = load_settings(controller.config)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    async with contextlib.AsyncExitStack() as undo:
        store = SqliteStore(settings.database)
        undo.push_async_callback(store.close)
        cluster = Cluster(store, settings)
        await cluster.start()
        undo.push_async_callback(cluster.stop)
        await serve(settings, cluster, undo, check_rights)
        yield cluster


class Controller:
    """`limpet controller` on loopback, with everything in one folder."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.settings = {
            "state_dir": str(folder / "state"),
            "socket": str(folder / "c.sock"),
            "listen": f"127.0.0.1:{self.port}",
            **settings,
        }
        self.config = folder / "controller.toml"
        self.log = folder / "log"
        self.environment: dict[str, str] = {}
        """More environment variables."""
        self.prefix: list[str] = []
        """A command that becomes the controller, in an environment that it has made for it."""
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def socket(self) -> Path:
        return Path(self.settings["socket"])

    @property
    def database(self) -> Path:
        return Path(self.settings["state_dir"]) / "controller.db"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def write_config(self) -> None:
        write_settings(self.config, self.settings)

    def start(self) -> Controller:
        """Returns when it is ready: it says so as to a service manager."""
        self.write_config()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            address = self.folder / "ready"
            address.unlink(missing_ok=True)
            ready.bind(str(address))
            ready.settimeout(PATIENCE_S)
            with open(self.log, "ab") as log:
                self._process = launcher().start(
                    [
                        *(*self.prefix, sys.executable, "-m", "limpet", "controller"),
                        *("--config", str(self.config)),
                    ],
                    stderr=log,
                    env={**os.environ, **self.environment, "NOTIFY_SOCKET": str(address)},
                )
            assert ready.recv(64) == b"READY=1"
        return self

    def run(self) -> tuple[int, str]:
        """Exit code and words of one that is expected not to start."""
        self.write_config()
        done = self.command("controller", "--config", str(self.config), config=False)
        return done.returncode, done.stderr

    def command(self, *words: str, config: bool = True) -> subprocess.CompletedProcess[str]:
        more = ["--config", str(self.config)] if config else []
        return launcher().run([sys.executable, "-m", "limpet", *words, *more], timeout=PATIENCE_S)

    def run_inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command where the controller is, with its configuration."""
        command = [*self.prefix, sys.executable, "-m", "limpet", *words]
        return launcher().run([*command, "--config", str(self.config)], timeout=PATIENCE_S)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def kill_if_it_runs(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def stop(self) -> int:
        """Exit code; does nothing when it does not run."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=PATIENCE_S)

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return call(self.socket, verb, **arguments)

    def token(self, **arguments: Any) -> str:
        return str(self.ask("token.create", **{"ttl_s": 3600, **arguments})["token"])


class Refusal(Exception):
    def __init__(self, status: int, refused: api.Refused) -> None:
        super().__init__(f"{status} {refused.code}: {refused.error}")
        self.status = status
        self.refused = refused
        self.code = refused.code


class Node:
    """What a node keeps, and how it asks."""

    def __init__(self, url: str, name: str, key: bytes | None = None) -> None:
        self.url = url
        self.name = name
        self.key = key or Ed25519PrivateKey.generate().private_bytes_raw()
        self.uid = uid_of(public_key_of(self.key))
        self.revision = 0
        self.sequence = 0
        self.boot_id = "boot-1"
        self.joined: api.JoinAnswer | None = None
        self.grants: list[Sealed] = []
        """Every one that was answered, oldest first."""
        self._session: aiohttp.ClientSession | None = None
        self._sockets: list[socket.socket] = []

    # Who it is

    @property
    def sealed(self) -> Sealed:
        return self.grants[-1]

    @property
    def grant(self) -> Grant:
        return self.open(self.sealed)

    def open(self, sealed: Sealed) -> Grant:
        assert self.joined is not None
        pinned = self.joined.pinned_key
        known = Known(KINDS, pinned)
        known = merge(known, [open_sealed(self.joined.documents[0], known)])[0]
        grant: Grant = open_sealed(sealed, known).value
        return grant

    def network(self, sealed: Sealed) -> Network:
        assert self.joined is not None
        network: Network = open_sealed(sealed, Known(KINDS, self.joined.pinned_key)).value
        return network

    def context(self, ca: str, certificate: str | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=ca)
        if certificate is not None:
            key = Ed25519PrivateKey.from_private_bytes(self.key).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            with tempfile.NamedTemporaryFile() as file:
                file.write(certificate.encode() + key)
                file.flush()
                context.load_cert_chain(file.name)
        return context

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        # aiohttp does not wait for a connection that it gave up before, by TLS's own goodbye.
        for connection in self._sockets:
            with contextlib.suppress(OSError):  # closed, or ended by the controller
                connection.shutdown(socket.SHUT_RDWR)
            while connection.fileno() != -1:
                await asyncio.sleep(0)
        self._sockets.clear()

    def _socket(self, found: tuple[Any, ...]) -> socket.socket:
        """One that is closed when the node is, whatever becomes of its connection."""
        family, kind, protocol, _, _ = found
        made = socket.socket(family, kind, protocol)
        self._sockets.append(made)
        return made

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            assert self.joined is not None
            context = self.context(self.joined.ca, self.joined.certificate)
            connector = aiohttp.TCPConnector(ssl=context, socket_factory=self._socket)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session

    # What it asks

    async def join(self, token: str, **changes: Any) -> api.JoinAnswer:
        parsed = api.parse_token(token)
        insecure = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        insecure.check_hostname = False
        insecure.verify_mode = ssl.CERT_NONE
        ca = (await self.fetch_as_stranger("GET", "/v1/ca", b"", insecure)).decode()
        assert api.ca_digest(ssl.PEM_cert_to_DER_cert(ca)) == parsed.ca_digest
        values = {
            "token": token,
            "name": self.name,
            "public_key": public_key_of(self.key),
            "proof": api.join_proof(token, self.name, self.key),
            **changes,
        }
        body = api.encode(api.JoinRequest(**values))
        data = await self.fetch_as_stranger("POST", "/v1/join", body, self.context(ca, None))
        self.joined = api.decode(data, api.JoinAnswer)
        self.take(own_grant(self.joined.documents))
        return self.joined

    def take(self, sealed: Sealed) -> Grant:
        grant = self.open(sealed)
        self.grants.append(sealed)
        self.revision = max(self.revision, grant.revision)
        return grant

    async def hello(self) -> api.HelloAnswer:
        request = api.HelloRequest(self.revision, (self.sealed,))
        answer = await self.post("/v1/hello", request, api.HelloAnswer)
        self.take(own_grant(answer.documents))
        return answer

    async def request_segments(self, *versions: int) -> Grant:
        request = api.SegmentRequest(self.grant.generation, versions)
        return self.take((await self.post("/v1/segments", request, api.SegmentAnswer)).document)

    async def show(self, documents: Sequence[Sealed]) -> int:
        request = api.ShowRequest(tuple(documents))
        return (await self.post("/v1/show", request, api.ShowAnswer)).taken

    async def publish(self, sequence: int | None = None, **changes: Any) -> int:
        self.sequence = self.sequence + 1 if sequence is None else sequence
        values = {
            "uid": self.uid,
            "sequence": self.sequence,
            "boot_id": self.boot_id,
            "addresses": (ip_address("192.0.2.1"),),
            **changes,
        }
        return await self.publish_sealed(seal_presence(Presence(**values), self.key))

    async def publish_sealed(self, sealed: Sealed) -> int:
        request = api.PublishRequest(sealed)
        data = await self.fetch("PUT", "/v1/documents", api.encode(request))
        return api.decode(data, api.PublishAnswer).version

    async def report(
        self, sequence: int, pods: Sequence[api.InterfaceAddresses], base: int | None
    ) -> int:
        request = api.PodReport(sequence, tuple(pods), base)
        return (await self.post("/v1/pods", request, api.PodAnswer)).sequence

    async def own_pods(self) -> list[api.InterfaceAddresses]:
        """What the controller has of its reports, page by page."""
        pods: list[api.InterfaceAddresses] = []
        pages, number = 1, 0
        while number < pages:
            page = api.decode(await self.fetch("GET", f"/v1/pods?page={number}", b""), api.PodPage)
            pods += page.pods
            pages, number = page.pages, number + 1
        return pods

    async def confirm(self) -> None:
        await self.post("/v1/joined", api.Done(), api.Done)

    async def post(self, path: str, request: msgspec.Struct, kind: type[T]) -> T:
        return api.decode(await self.fetch("POST", path, api.encode(request)), kind)

    async def fetch_as_stranger(
        self, verb: str, path: str, body: bytes, context: ssl.SSLContext
    ) -> bytes:
        """The body of the answer on a connection of its own, which the controller ends.

        Raises: Refusal.
        """
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port, ssl=context, server_hostname=api.SERVER_NAME
        )
        try:
            head = f"{verb} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answered, _, data = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
        if not answered:
            raise ConnectionResetError(f"{verb} {path}: the controller ended without an answer")
        status = int(answered.split(b" ", 2)[1])
        if status != 200:
            raise Refusal(status, api.decode(data, api.Refused))
        return data

    async def fetch(
        self,
        verb: str,
        path: str,
        body: bytes,
        session: aiohttp.ClientSession | None = None,
    ) -> bytes:
        """The body of the answer. Raises: Refusal."""
        headers = {api.REVISION_HEADER: str(self.revision)}
        async with (session or self.session()).request(
            verb,
            self.url + path,
            data=io.BytesIO(body),
            headers=headers,
            server_hostname=api.SERVER_NAME,
        ) as answer:
            data = await answer.read()
            if answer.status != 200:
                raise Refusal(answer.status, api.decode(data, api.Refused))
            return data

    @contextlib.asynccontextmanager
    async def watch(
        self, since: str | None = None, kinds: str | None = None
    ) -> AsyncIterator[AsyncIterator[api.WatchLine]]:
        """Line after line. Raises: Refusal."""
        said = {"since": since, "kinds": kinds}
        query = {name: text for name, text in said.items() if text is not None}
        headers = {api.REVISION_HEADER: str(self.revision)}
        async with self.session().get(
            f"{self.url}/v1/watch",
            params=query,
            headers=headers,
            server_hostname=api.SERVER_NAME,
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=1 << 20,
        ) as answer:
            if answer.status != 200:
                raise Refusal(answer.status, api.decode(await answer.read(), api.Refused))
            try:
                yield _lines(answer)
            finally:
                # A stream that is left half read is closed by TLS, which waits for the other end,
                # and nothing waits for that: on a busy machine the loop of the test ends before it.
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()


def own_grant(documents: Sequence[Sealed]) -> Sealed:
    (grant,) = (sealed for sealed in documents if sealed.kind == GRANT.name)
    return grant


def network_in(documents: Sequence[Sealed]) -> Sealed:
    (network,) = (sealed for sealed in documents if sealed.kind == NETWORK.name)
    return network


def of_kind(line: api.WatchLine, kind: Kind[Any]) -> Sealed | None:
    """The document of the line, if it is of this kind."""
    document = line.document
    return document if document is not None and document.kind == kind.name else None


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[api.WatchLine]:
    async for line in answer.content:
        yield api.decode(line, api.WatchLine)


async def until_bookmark(lines: AsyncIterator[api.WatchLine]) -> list[api.WatchLine]:
    """With the bookmark."""
    found = []
    async for line in lines:
        found.append(line)
        if line.kind is api.WatchKind.BOOKMARK:
            break
    return found


async def join_all(controller: Controller, *names: str) -> list[Node]:
    nodes = [Node(controller.url, name) for name in names]
    tokens = await asyncio.to_thread(lambda: [controller.token() for _ in nodes])
    await asyncio.gather(*(node.join(token) for node, token in zip(nodes, tokens, strict=True)))
    return nodes


def free_port() -> int:
    """A port of loopback that the kernel gives to nobody else as long as this process lives: who
    asks for it by name may listen there beside the socket that holds it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _HOLDERS.append(holder)
    return int(holder.getsockname()[1])
