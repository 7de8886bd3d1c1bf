"""The agent: start, signals, exit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from limpet.agent.answers.verbs import Admin
from limpet.agent.dispatch import Dispatcher
from limpet.agent.happenings.of_node import NodeHappenings
from limpet.agent.original_sysctls import SYSCTLS_FILE, OriginalSysctls
from limpet.agent.policies.slot import PolicySlot
from limpet.agent.settings import Settings, load_settings
from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.base.process.lifetime import (
    KEPT_DESCRIPTORS,
    allow_many_files,
    for_ever,
    notify_service_manager,
    only_one,
    run,
)
from limpet.base.process.log import complain, configure_log
from limpet.base.process.memory import give_memory_back, share_one_heap
from limpet.base.process.signals import hold_back
from limpet.cni.ledgers import Ledgers
from limpet.cni.repair import Repair
from limpet.cni.server import CniServer
from limpet.cni.verbs import Node
from limpet.datapath.event import BridgeMade, Event, LinksChanged, PodsChanged
from limpet.datapath.loop import Loop
from limpet.datapath.node.apply import NodeKernel
from limpet.datapath.node.bridges import Bridges
from limpet.datapath.node.forward_keeper import forward_keeper
from limpet.datapath.node.part import NodePart
from limpet.datapath.node.pod.announcer import Announcer
from limpet.datapath.node.pod.attachments import Attachments
from limpet.datapath.node.pod.guards import PodGuards
from limpet.datapath.node.pod.keeper import PodKeeper
from limpet.datapath.node.pod.reaper import Reaper
from limpet.datapath.node.ports.part import PortPart
from limpet.linux.sysctl import has_ipv6
from limpet.linux.underlay import read_lan

if TYPE_CHECKING:  # a node on its own need not have a cluster's side in memory
    from limpet.agent.wiring import ClusterSide
    from limpet.base.metrics.server import MetricsServer
    from limpet.cloud.enrollment import Enrollment

_log = structlog.get_logger("agent")


def main(arguments: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT. Exit code 0; 1 when it could not start; 2 for bad usage."""
    config = _config_of(arguments)
    os.umask(0o077)  # whatever we were started with
    KEPT_DESCRIPTORS.begin()
    share_one_heap()
    try:
        settings = load_settings(config)
        configure_log(settings.log_level)
        restart_wanted = run(partial(_run, settings))
    except LimpetError as error:
        complain(f"limpet agent: {error}")
        return 1
    if restart_wanted:
        # The same process, for whoever minds it, without what was in memory for another task.
        hold_back()
        KEPT_DESCRIPTORS.hand_on()
        os.execv(sys.executable, sys.orig_argv)
    return 0


def _config_of(arguments: Sequence[str]) -> Path | None:
    """The settings' file that is named; None: none is."""
    if not arguments:
        return None
    if len(arguments) == 2 and arguments[0] == "--config":
        return Path(arguments[1])
    # What is in the wrong: services have no use for it, and it takes 0.6 MiB.
    import argparse

    parser = argparse.ArgumentParser(prog="limpet agent", add_help=False)
    parser.add_argument("--config", type=Path)
    named: Path | None = parser.parse_args(arguments).config
    return named


async def _run(settings: Settings) -> bool:
    """True: the agent has to begin anew, as a node of a cluster or with other tasks."""
    started_s = time.monotonic()
    allow_many_files()
    asyncio.get_running_loop().set_exception_handler(faults.note_of_loop)
    # What the start makes stays: of thousands of peers, looking for garbage in it takes long.
    gc.disable()
    with only_one(
        settings.folders.run_dir / "agent.lock",
        folder_mode=0o755,
        taken="another agent runs",
        hint="stop it first: systemctl stop limpet-agent",
    ):
        _keep_waiting_pods(settings)
        _put_damage_aside(settings)
        enrollment = _enrollment(settings)
        agent = _Agent(settings, lambda: enrollment.problem if enrollment is not None else "")
        try:
            await agent.start()
            notify_service_manager("READY=1")
            _log.info(
                "ready",
                socket=str(settings.folders.socket),
                took_s=f"{time.monotonic() - started_s:.3f}",
            )
            gc.collect()
            gc.freeze()
            gc.enable()
            give_memory_back()
            await _until_another(enrollment, agent)
            _log.info("stopping, to begin anew")
        finally:
            await agent.stop()
    return True


def _keep_waiting_pods(settings: Settings) -> None:
    """What the last agent, which joined, has left to this one. Raises: StorageError."""
    if (settings.folders.cluster_dir / "pods-to-keep.json").exists():
        # Only now: it is once in the life of a node.
        from limpet.cloud.join import keep_waiting_pods

        keep_waiting_pods(settings.folders)


def _put_damage_aside(settings: Settings) -> None:
    """Who joins by itself does so again. Raises: LimpetError."""
    if settings.joins_by_itself and (settings.folders.cluster_dir / "cluster.json").exists():
        # Only now, as for the cluster's side.
        from limpet.cluster.identity import put_damage_aside

        if damage := put_damage_aside(settings.folders.cluster_dir):
            _log.warning("the node joins again", why=damage)


async def _until_another(enrollment: Enrollment | None, agent: _Agent) -> None:
    """Until the node has joined, or the agent has other tasks than those it was begun with."""
    changing = [asyncio.create_task(each) for each in (for_ever(), *agent.until_another())]
    if enrollment is not None:
        changing.append(asyncio.create_task(enrollment.run()))
    try:
        await asyncio.wait(changing, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in changing:
            each.cancel()


class _Agent:
    """All parts of the agent, put together."""

    def __init__(self, settings: Settings, why_not_joined: Callable[[], str]) -> None:
        kernel = NodeKernel()
        announcer, reaper = Announcer(), Reaper()
        self._attachments = Attachments(settings.folders.run_dir / "attachments")
        self._ledgers = Ledgers(settings.folders.data_dir, settings.pods.rest_s, self._attachments)
        originals = OriginalSysctls(settings.folders.state_dir / SYSCTLS_FILE)
        self._cluster: ClusterSide | None = None
        self._happenings = NodeHappenings(settings.folders.state_dir)
        self._loop = Loop(self._tell)
        self._ports = PortPart(
            self._loop, settings.pods.port_security, self._attachments, self._unrecorded
        )
        self._loop.add(self._ports)
        node_part = NodePart(
            self._loop,
            settings.pods,
            kernel=kernel,
            guards=PodGuards(self._ports),
            pods=PodKeeper(
                self._attachments,
                announcer,
                is_held=self._is_held,
                release=self._release,
                retired=reaper.put,
            ),
            originals=originals,
            bridges=Bridges(settings.dns.listen, settings.folders.run_dir),
            forward=forward_keeper(settings.folders.run_dir, is_wanted=settings.pods.allow_forward),
        )
        self._loop.add(node_part)
        self._node = Node(
            kernel=kernel,
            ledgers=self._ledgers,
            attachments=self._attachments,
            reaper=reaper,
            announcer=announcer,
            node_part=node_part,
            tell=self._tell,
        )
        repair = Repair(self._node)
        self._resync = partial(_resync, self._loop, repair, settings.resync_s, self._look)
        self._resyncing: asyncio.Task[None] | None = None
        self._cluster = self._cluster_side(settings, originals)
        membership = None if self._cluster is None else self._cluster.membership
        self._policies = PolicySlot(self._loop, node_part, settings, self._attachments, membership)
        if membership is not None:
            membership.replica.subscribe(self._policies.hear)
        admin = Admin(
            self._node,
            repair,
            self._cluster,
            self._policies,
            self._happenings,
            why_not_joined=why_not_joined,
        )
        self._metrics = self._metrics_server(settings, admin)
        dispatcher = Dispatcher(self._node, admin, settings.dns)
        self._server = CniServer(settings.folders.socket, dispatcher.answer)

    def _cluster_side(self, settings: Settings, originals: OriginalSysctls) -> ClusterSide | None:
        """None: the node has joined none. Raises: LimpetError."""
        if not (settings.folders.cluster_dir / "cluster.json").exists():
            return None
        # Only now: TLS and signatures take memory and time that a node on its own need not spend.
        from limpet.agent.wiring import ClusterSide
        from limpet.cluster.identity import load_identity

        identity = load_identity(settings.folders.cluster_dir)
        if identity is None:
            return None
        return ClusterSide(
            identity,
            settings,
            loop=self._loop,
            node_part=self._node.node_part,
            ledgers=self._ledgers,
            route=self._node.kernel.route,
            before_sysctl=originals.keep,
            happenings=self._happenings,
        )

    def _metrics_server(self, settings: Settings, admin: Admin) -> MetricsServer | None:
        """None: nobody is to be served."""
        if not settings.metrics_listen:
            return None
        # Most nodes serve none.
        from limpet.agent.figures.metrics import Metrics
        from limpet.base.metrics.server import MetricsServer

        metrics = Metrics(self._node, admin, self._cluster, self._policies, settings.folders)
        return MetricsServer(
            settings.metrics_listen,
            metrics=metrics.text,
            reasons=admin.reasons_not_ready,
        )

    async def start(self) -> None:
        self._happenings.start(self._node)
        self._ledgers.open_known()
        for attachment in self._attachments:
            with contextlib.suppress(LimpetError):  # told by `status`, met again with each request
                self._ledgers.ledger(attachment.network, attachment.data_dir)
        self._loop.start()
        self._ports.run("start")  # before any pod's interface is made anew
        self._node.node_part.run("start")
        if not self._node.node_part.failures:
            self._attachments.forget_unfinished()
        self._policies.begin()  # pods from before are under them still, and there are no others
        if self._cluster is not None:
            self._cluster.begin()
        self._node.reaper.put()  # what an earlier agent put aside
        self._resyncing = asyncio.create_task(self._resync())
        await self._node.node_part.settled()
        await self._server.start()
        self._policies.start()
        if self._cluster is not None:
            await self._cluster.connect()
        if self._metrics is not None:
            await self._metrics.start()

    async def stop(self) -> None:
        async with contextlib.AsyncExitStack() as parts:  # from the last to the first
            parts.push_async_callback(self._happenings.stop)
            parts.callback(self._node.kernel.close)
            parts.callback(self._node.announcer.close)
            parts.callback(self._ledgers.close)
            parts.callback(self._node.reaper.close)
            parts.callback(self._node.node_part.close)
            parts.callback(self._policies.close)
            parts.callback(self._ports.close)
            if self._cluster is not None:
                parts.push_async_callback(self._cluster.close)
            parts.callback(self._loop.close)
            if self._resyncing is not None:
                parts.push_async_callback(_end, self._resyncing)
            parts.push_async_callback(self._policies.stop)
            parts.push_async_callback(self._server.stop)
            parts.callback(self._happenings.recorder.end_waits)  # requests are answered first
            if self._metrics is not None:
                parts.push_async_callback(self._metrics.stop)

    def until_another(self) -> list[Coroutine[Any, Any, Any]]:
        """Coroutines whose end means that it has to begin anew."""
        return [] if self._cluster is None else [self._cluster.kubernetes.restart_wanted.wait()]

    def _look(self) -> None:
        if self._cluster is not None:
            self._cluster.kubernetes.look_at_choice()

    def _tell(self, event: Event) -> None:
        if isinstance(event, PodsChanged | BridgeMade):
            self._ports.pods_changed()
            self._policies.pods_changed()
        elif isinstance(event, LinksChanged):
            self._policies.network_changed()
        if self._cluster is not None:
            self._cluster.tell(event)

    def _is_held(self, host_ifname: str) -> bool:
        """A pod may live on it whose record is gone; none does on what was left half made."""
        return (
            host_ifname not in self._attachments.unfinished
            and self._ledgers.is_host_end_of_holder(host_ifname)
        )

    def _unrecorded(self) -> set[str]:
        """Host ends of pods whose record is gone, or another plugin's. Raises: KernelError."""
        recorded = {each.link.host_ifname for each in self._attachments}
        kernel = self._node.kernel
        lost = {each for each in kernel.pod_links() - recorded if self._is_held(each)}
        return lost | kernel.given_back_links()

    def _release(self, attachment: Any) -> None:
        self._node.forget(attachment)


def _enrollment(settings: Settings) -> Enrollment | None:
    """None: the node has joined, or a person lets it in, or it stays on its own."""
    if not settings.joins_by_itself:
        return None
    if (settings.folders.cluster_dir / "cluster.json").exists():
        return None
    # Only now: a client of an API server is in memory where one is asked.
    from limpet.cloud.enrollment import Enrollment

    return Enrollment(
        settings.folders,
        settings.source,
        lan=partial(read_lan, settings.peers.links),
        has_ipv6=has_ipv6,
        random=random.random,
    )


async def _resync(loop: Loop, repair: Repair, every_s: float, look: Callable[[], None]) -> None:
    """Now and then looks at everything, whatever was notified; at leaks first soon after start."""
    while True:
        try:
            await repair()
        except LimpetError as error:
            _log.warning("leaks cannot be looked for", error=str(error))
        except Exception as error:  # noqa: BLE001 - the next time may be better
            faults.note("looking for leaks", error)
        await asyncio.sleep(every_s)
        with faults.noted("looking at everything"):
            for _ in loop.resync_by_turns("timer"):
                await asyncio.sleep(0)
            look()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
