"""The process that answers names: start, hand-over to the next one, end."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path

import structlog

from limpet.base import faults
from limpet.base.bounds.servers import DNS_CACHE
from limpet.base.errors import LimpetError
from limpet.base.process.lifetime import for_ever, notify_service_manager
from limpet.base.process.memory import give_memory_back
from limpet.base.process.threads import in_thread
from limpet.base.settings import DnsSettings
from limpet.base.timer import Timer
from limpet.dns.control import Control
from limpet.dns.device import keep_device
from limpet.dns.forward.cache import Cache
from limpet.dns.forward.forwarder import Forwarder
from limpet.dns.forward.health import Upstream
from limpet.dns.forward.upstreams import read_upstreams
from limpet.dns.handover import listening
from limpet.dns.kept_services import KeptHere, KeptServices
from limpet.dns.names import ClusterNames
from limpet.dns.resolver import Asker, Resolver, random_numbers
from limpet.dns.server import Client, DnsServer
from limpet.dns.status.answers import NamesStatus
from limpet.linux.file_changes import FileChanges
from limpet.services.values import ServiceName

_log = structlog.get_logger("dns")

_LOOK_AGAIN_S = 10.0
"""At what tells nobody that it changed: the link, folders that were not there."""
_REST_S = 0.1
"""Between two readings of what goes on changing."""
_SWITCH_S = 0.0005
"""So long a question waits for the thread that reads Services; Python's own are 5 ms."""
_FINISH_S = 5.0
"""Who has asked is answered by then, or asks again."""


async def answer_names(
    settings: DnsSettings,
    cluster_dir: Path,
    run_dir: Path,
    beside: Callable[[Callable[[], NamesStatus]], AbstractAsyncContextManager[None]],
) -> None:
    """Until it is cancelled. `beside`: what goes on while names are answered; it is given the
    status of that. Raises: LimpetError."""
    started_s = time.monotonic()
    sys.setswitchinterval(_SWITCH_S)
    process = _Process(settings, cluster_dir, run_dir)
    try:
        await process.start()
        notify_service_manager("READY=1")
        _log.info(
            "ready",
            listen=",".join(map(str, settings.listen)),
            services=process.services,
            took_s=f"{time.monotonic() - started_s:.3f}",
        )
        async with beside(process.status):
            # What is known now is not looked through again while somebody waits.
            gc.collect()
            gc.freeze()
            give_memory_back()
            try:
                await for_ever()
            finally:
                await process.finish()
    finally:
        process.close()


class _OneByOne:
    """Something that is done once more when it was asked for while it was done, after a while: who
    writes Services all the time keeps no processor busy here."""

    def __init__(self, do: Callable[[], Awaitable[None]]) -> None:
        """`do` raises nothing."""
        self._do = do
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def ask(self) -> None:
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._again:
            self._again = False
            await self._do()
            if self._again:
                await asyncio.sleep(_REST_S)


class _Process:
    """Its parts, put together. Runs on the event loop's thread."""

    def __init__(self, settings: DnsSettings, cluster_dir: Path, run_dir: Path) -> None:
        """Raises: LimpetError."""
        self._settings = settings
        cache = Cache(most_bytes=DNS_CACHE.most, stale_s=settings.stale_s)
        forwarder: Forwarder[Asker[Client]] = Forwarder(cache, random_numbers(os.urandom))
        self._resolver: Resolver[Client] = Resolver(forwarder)
        self._resolver.serve(settings.domain)
        self._server = DnsServer(self._resolver)
        self._kept = KeptServices(cluster_dir, run_dir)
        self._here = KeptHere(run_dir)
        self._names: ClusterNames | None = None
        self._control = Control(run_dir, self._resolver, self._server, self._trouble)
        self._undo = ExitStack()
        self._timer = Timer("dns", self._look_again)
        self._troubles: dict[str, str] = {}
        """What cannot be done just now, by what it is about."""
        self._reading = _OneByOne(self._read_in_thread)
        """Services; whoever asks meanwhile is answered by what was known."""
        kept = (self._kept.path, self._kept.journal_path, self._here.path)
        paths = [*kept, settings.resolv_conf]
        self._files = FileChanges(paths, follows=True)
        self._undo.callback(self._files.close)

    @property
    def services(self) -> int:
        return len(self._kept.catalog)

    def status(self) -> NamesStatus:
        return self._control.status()

    def _trouble(self) -> str:
        return "; ".join(self._troubles.values())

    async def start(self) -> None:
        """Whoever asks from now on is answered. Raises: LimpetError."""
        self._keep_device()
        try:
            self._know(self._kept.read())
        except LimpetError as error:
            self._tell_once("services", f"no Service is known: {error}")
        self._read_here()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._files.fileno(), self._touched)
        self._undo.callback(loop.remove_reader, self._files.fileno())
        self._listen()
        self._read_upstreams()  # who sends our first question back to us finds us
        await self._control.start()
        self._timer.set_in(_LOOK_AGAIN_S)

    def _listen(self) -> None:
        stored = listening.stored_fds()
        fds = stored or self._control.ask_before()
        adopted, opened = listening.adopt(fds, self._settings.listen)
        if opened or len(adopted) != len(stored):
            listening.store([*adopted, *opened])
        self._server.listen([*adopted, *opened])
        self._control.leave_sockets()
        _log.info("listening", taken_over=len(adopted), opened=len(opened))
        self._control.has_taken_over()

    async def finish(self) -> None:
        """Nothing new is read; who waits is answered, unless that takes longer than they wait."""
        self._server.pause()
        try:
            async with asyncio.timeout(_FINISH_S):
                while not self._server.is_idle:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return

    def close(self) -> None:
        self._timer.stop()
        self._reading.cancel()
        self._undo.close()
        self._control.close()
        self._server.close()

    # What changes

    def _touched(self) -> None:
        with self._watching():
            if self._files.drain():
                self._read_here()
                self._reading.ask()
                self._read_upstreams()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        try:
            yield
        except LimpetError as error:
            self._tell_once("files", f"changed files are read some seconds later: {error}")
        else:
            self._tell_once("files")

    def _look_again(self) -> None:
        self._timer.set_in(_LOOK_AGAIN_S)
        self._keep_device()
        with self._watching():
            self._files.look_again()
        self._read_here()
        self._reading.ask()
        self._read_upstreams()
        self._control.leave_sockets()
        self._server.look_again()
        self._server.carry_out()

    def _keep_device(self) -> None:
        try:
            done = keep_device(self._settings.listen)
        except LimpetError as error:
            self._tell_once("device", f"no pod reaches this node's DNS: {error}")
        else:
            self._tell_once("device")
            for line in done:
                _log.info("device", done=line)

    async def _read_in_thread(self) -> None:
        try:
            news = await in_thread(self._kept.look, "services")
        except LimpetError as error:
            self._tell_once("services", f"services stay as they were: {error}")
        except Exception as error:  # noqa: BLE001 - the next file may be better
            faults.note("reading services", error)
        else:
            self._tell_once("services")
            self._know(None if news is None else self._kept.apply(news))

    def _know(self, changed: set[ServiceName] | None) -> None:
        """Services that are others now; None: all is as it was."""
        if changed is None:
            return
        if self._names is None:
            own = self._settings.listen
            self._names = ClusterNames(self._kept.catalog, self._settings.domain, own)
            self._resolver.know(self._names)
            self._read_here()
        else:
            self._resolver.changed(changed)
        if self._names.is_partial != self._kept.is_partial:
            self._names.is_partial = self._kept.is_partial
            self._resolver.know(self._names)
        self._tell_once("listen", "; ".join(self._taken()))

    def _taken(self) -> Iterator[str]:
        """Addresses that are a Service's: whoever serves that takes what is sent there before it
        gets here, in words."""
        for address in self._settings.listen:
            service = self._kept.catalog.by_address(str(address))
            if service is not None:
                yield (
                    f"{address} of dns_listen is the cluster address of Service "
                    f"{service.namespace}/{service.name}: what serves that leads questions to its "
                    "endpoints, and none is answered here (take it out; pods are given another "
                    "one by their kubelet's clusterDNS)"
                )

    def _read_here(self) -> None:
        """What the agent says of nodes and pods; who is dead is forgotten where nothing that can be
        read was said for long."""
        try:
            self._here.read()
        except (LimpetError, ValueError) as error:
            self._tell_once("here", f"which endpoints are near stays as it was: {error}")
        else:
            self._tell_once("here")
        self._resolver.set_here(self._here.known(time.monotonic()))

    def _read_upstreams(self) -> None:
        try:
            self._server.use(self._upstreams())
        except LimpetError as error:
            self._tell_once("upstreams", f"upstreams stay as they were: {error}")
        else:
            self._tell_once("upstreams")

    def _upstreams(self) -> Sequence[Upstream]:
        if self._settings.upstreams:
            return [Upstream(address, port) for address, port in self._settings.upstreams]
        return read_upstreams(self._settings.resolv_conf, self._settings.listen)

    def _tell_once(self, about: str, words: str = "") -> None:
        """Empty words: that is well again."""
        if words and self._troubles.get(about) != words:
            _log.warning(words)
        if words:
            self._troubles[about] = words
        else:
            self._troubles.pop(about, None)
