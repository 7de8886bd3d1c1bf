"""Sites of real agents' loops, each in a thread and namespace of its own, joined by a router."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from limpet.base.addresses import Endpoint
from limpet.base.ownership import ROUTE_TABLE
from limpet.base.settings import PeerSettings, TunnelSettings
from limpet.cluster.datagrams.peer_socket import PeerSocket
from limpet.cluster.documents import Source
from limpet.cluster.identity import Identity
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.datapath.event import Event, PeerUnanswered
from limpet.datapath.loop import Loop
from limpet.datapath.overlay.filter.apply import PeerFilter
from limpet.datapath.together.peer_parts import PeerParts
from limpet.datapath.tunnel.handshake_reset import HandshakeReset
from limpet.datapath.tunnel.setup import TunnelSetup
from limpet.datapath.tunnel.state import PeerReading
from limpet.linux.netlink.socket import RouteSocket
from tests.beds.member import membership_of
from tests.beds.overlay_bed import Node, OverlayBed
from tests.beds.tunnel_bed import wireguard_go
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    introduced,
    network,
    node_key,
    seal_grant,
    seal_network,
)
from tests.waiting import wait_until

WITHIN_S = 60.0
"""Nothing takes so long, and a loaded machine makes no failure."""
_numbers = itertools.count()
T = TypeVar("T")


class Agent:
    """The part of a node's agent that keeps the network between nodes; `stop` ends it."""

    def __init__(
        self,
        node: Node,
        folder: Path,
        *,
        program: str = "",
        ifname: str = "",
        ipsec_program: str = "",
        **settings: Any,
    ) -> None:
        self.node = node
        self.folder = folder
        folder.mkdir(exist_ok=True)
        # Names are unique on the whole machine: the program's sockets are in one fixed folder.
        self.ifname = ifname or f"lsi{os.getpid() % 10**7}.{next(_numbers) % 1000}"
        self.settings = PeerSettings(**settings)
        tunnel = TunnelSettings(
            ifname=self.ifname,
            program=program or wireguard_go(),
            ipsec_program=ipsec_program or TunnelSettings().ipsec_program,
        )
        self.setup = TunnelSetup(tunnel, folder, "limpet0")
        self.courier: PeerSocket | None = None
        self.told: list[Event] = []
        self.anew: HandshakeReset | None = None
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(WITHIN_S)
        if self._failed:
            raise self._failed[0]

    def note(self, event: Event) -> None:
        self.told.append(event)
        if isinstance(event, PeerUnanswered) and self.anew is not None:
            self.anew.ask(event.uid, event.endpoint)

    def _run(self) -> None:
        with self.node.netns.entered(), ExitStack() as undo:
            try:
                identity = Identity(
                    self.folder, node_key(self.node.number), "node", PINNED, ("c:7470",)
                )
                self.membership = membership_of(identity)
                undo.callback(self.membership.close)
                sealed = seal_network(network(), CLUSTER_KEY)
                self.loop.run_until_complete(self._offer(sealed))
                route = undo.enter_context(RouteSocket())
                self.part_loop = Loop(self.note)
                self.peer_parts = PeerParts(
                    self.part_loop,
                    self.membership,
                    self.settings,
                    self.setup,
                    route=route,
                    vtep_path=self.folder / "vtep.json",
                    peer_filter=PeerFilter(lambda: ["limpet0"], self.settings.port),
                    before_sysctl=lambda path: None,
                )
                self.membership.subscribe(self.peer_parts.hear)
                self.loop.call_soon(self._start)
                undo.callback(self.loop.close)
                self.loop.run_forever()
                self.loop.run_until_complete(self._close())
            except BaseException as error:
                self._failed.append(error)
                raise
            finally:
                self._ready.set()

    async def _offer(self, sealed: Any) -> None:
        grant = seal_grant(self.node.grant, CLUSTER_KEY)
        self.membership.offer([sealed, grant], source=Source.CLOUD)

    def _start(self) -> None:
        try:
            self.part_loop.start()
            self.peer_parts.start({})
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._failed.append(error)
            self.loop.stop()
        self._ready.set()

    async def _close(self) -> None:
        if self.courier is not None:
            self.courier.stop()
        self.part_loop.close()
        self.peer_parts.close()

    def talk(self) -> HandshakeReset:
        """The agent hears and says what is said by the tunnel's port."""

        def begin() -> HandshakeReset:
            peer_parts, membership = self.peer_parts, self.membership
            courier = self.courier = PeerSocket(
                membership.identity,
                port=self.settings.port,
                is_member=membership.is_member,
                is_removed=membership.removal_of,
            )
            courier.start()
            tunnels = peer_parts.tunnels
            courier.share_tunnel_port(tunnels.key.port)
            made = HandshakeReset(
                courier,
                may_talk=lambda uid: any(each.may_talk(uid) for each in tunnels.all),
                take=tunnels.reset_handshake,
            )
            self.anew = made
            return made

        return self.do(begin)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(WITHIN_S)

    def do(self, call: Callable[[], T]) -> T:
        """On the agent's loop."""

        async def called() -> T:
            return call()

        return self.await_(called())

    def await_(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WITHIN_S)

    def hear(self, other: Agent) -> None:
        """What the other agent says of itself."""
        told = other.do(lambda: introduced(other.membership))
        self.do(lambda: self.membership.offer(told, source=Source.NEIGHBOUR))

    def hear_removed(self, other: Agent) -> None:
        revoked = replace(other.node.grant, generation=2, segments=(), tombstone=True)
        sealed = seal_grant(revoked, CLUSTER_KEY)
        self.do(lambda: self.membership.offer([sealed], source=Source.CLOUD))

    def reach(self, paths: dict[str, PeerPath]) -> None:
        self.do(lambda: self.peer_parts.peers.set_paths(paths))

    @property
    def has_tunnel(self) -> bool:
        return self.do(lambda: self.peer_parts.tunnels.wireguard.up)

    @property
    def pid(self) -> int:
        """Of the userspace WireGuard; 0: none runs, the kernel's is used."""
        return self.do(lambda: self.peer_parts.tunnels.wireguard.kernel.program.pid) or 0

    @property
    def device(self) -> int:
        """Index of the tunnel's device: another one when it was made anew; 0: there is none."""
        link = self.node.route.link(self.ifname)
        return link.ifindex if link is not None else 0

    def lose_tunnel(self) -> None:
        """Ends the tunnel from outside; when it returns the agent has made it anew."""
        lost = self.device
        if pid := self.pid:
            os.kill(pid, signal.SIGKILL)
        else:
            self.node.netns.ip(f"link delete {self.ifname}")
        wait_until(lambda: self.has_tunnel and self.device not in (0, lost))

    def reading(self, other: Agent) -> PeerReading | None:
        """What the device says of the peer just now."""
        key = other.peer_parts.tunnels.wireguard.key.public_key
        return self.do(self.peer_parts.tunnels.wireguard.readings).get(key)

    def routes(self) -> str:
        shown = f"ip route show table {ROUTE_TABLE}; ip -6 route show table {ROUTE_TABLE}"
        return self.node.netns.run("sh", "-c", shown)

    def is_routed_to(self, other: Agent, device: str = "") -> bool:
        """Both segments of the other, by the device."""
        lines = self.routes().splitlines()
        return all(
            any(
                line.startswith(str(prefix)) and f" dev {device or self.ifname} " in line
                for line in lines
            )
            for prefix in other.node.grant.segments
        )

    def rules(self) -> int:
        """Versions with the rule for the tunnel's own packets."""
        shown = self.node.netns.run("sh", "-c", "ip rule show; ip -6 rule show")
        return shown.count("5147:\tfrom all fwmark 0x1000 lookup main")


class SiteTunnelBed(OverlayBed):
    """A node in each site, or all in one."""

    def __init__(self, folder: Path, count: int = 2, *, routed: bool = True) -> None:
        super().__init__(count, routed=routed)
        self.folder = folder
        self.agents: list[Agent] = []
        try:
            for node in self.nodes:
                self.agents.append(self.start(node))
            for one, other in itertools.permutations(self.agents, 2):
                one.hear(other)
        except BaseException:
            self.close()
            raise

    def start(self, node: Node, **fields: Any) -> Agent:
        agent = Agent(node, self.folder / f"n{node.number}", **fields)
        self.undo.callback(self.end, agent)
        return agent

    def end(self, agent: Agent) -> None:
        """The agent, and the program that makes its tunnel and would outlive it."""
        agent.stop()
        program = agent.peer_parts.tunnels.wireguard.kernel.program
        with agent.node.netns.entered():
            program.stop()

    def endpoint(self, agent: Agent, version: int = 4) -> Endpoint:
        return ip_address(self.underlay(agent.node, version)), agent.peer_parts.tunnels.key.port

    def by(self, agent: Agent, rung: transports.Transport, version: int = 4) -> PeerPath:
        """A path to the agent's node."""
        if rung is transports.TUNNEL:
            return PeerPath(rung, endpoint=self.endpoint(agent, version))
        return self.path(agent.node, rung, version)

    def join_all(self, rung: transports.Transport = transports.TUNNEL, version: int = 4) -> None:
        """Everybody has a path to everybody, and has routes by it."""
        for one in self.agents:
            others = [each for each in self.agents if each is not one]
            one.reach({other.node.uid: self.by(other, rung, version) for other in others})
        for one in self.agents:
            device = one.ifname if rung is transports.TUNNEL else f"limvx{version}"
            for other in self.agents:
                if other is not one:
                    wait_until(lambda o=one, p=other, d=device: o.is_routed_to(p, d))  # type: ignore[misc]


def say(one: Agent, other: Agent) -> None:
    """A pod of the one says something to a pod of the other, which does not answer."""
    with one.node.pod.open_socket(4, socket.SOCK_DGRAM) as sender:
        sender.sendto(bytes(100), (other.node.address(4), 9))


def look(agent: Agent, *, after_s: float = 0.0) -> None:
    """At the tunnel's traffic, as if it were so much later."""
    agent.do(lambda: agent.peer_parts.watch.look(time.monotonic() + after_s))
