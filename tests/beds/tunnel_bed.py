"""Sites of one node each behind a router, joined by encrypted tunnels as the real planner says."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from ipaddress import ip_address
from pathlib import Path

import pytest

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError
from limpet.base.ownership import PEER_METRIC, ROUTE_TABLE, TUNNEL_MARK
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.transports import TUNNEL_OVERHEAD_BYTES
from limpet.cluster.topology.tunnel_end import (
    TunnelEnd,
    tunnel_device_mtu_bytes,
    tunnel_mtu_bytes,
)
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.diff import diff_overlay
from limpet.datapath.overlay.plan import plan_overlay
from limpet.datapath.overlay.state import OverlayState, PeerRoute
from limpet.datapath.tunnel.backend import TunnelBackendKernel
from limpet.datapath.tunnel.diff import DropTunnel, TunnelChange, diff_tunnel
from limpet.datapath.tunnel.key import tunnel_key_of
from limpet.datapath.tunnel.plan import TunnelView, plan_tunnel
from limpet.datapath.tunnel.state import PeerReading, TunnelKey, TunnelPlan, TunnelState
from limpet.datapath.tunnel.wireguard.apply import TunnelKernel
from limpet.datapath.tunnel.wireguard.device import KernelWireguard
from limpet.linux.netlink.socket import RouteSocket
from tests.beds.overlay_bed import Node, OverlayBed
from tests.unit.cluster_values import node_key
from tests.waiting import wait_until

_numbers = itertools.count()


@cache
def wireguard_go() -> str:
    """The program, fetched if it is not there."""
    script = Path(__file__).parents[2] / "scripts" / "fetch-wireguard"
    done = subprocess.run([script], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def kernel_has_wireguard() -> bool:
    with RouteSocket() as route, suppress(KernelError):
        KernelWireguard(route, "lwg0").close()
        return True
    return False


def skip_without_kernel_wireguard() -> None:
    if not kernel_has_wireguard():
        pytest.skip("this kernel has no WireGuard")


class Tunnel:
    """The tunnel's side of a node; `restart` is that of its agent."""

    kernel: TunnelBackendKernel

    def __init__(self, node: Node, folder: Path, ifname: str) -> None:
        self.node = node
        self.folder = folder
        self.ifname = ifname
        self.ends: dict[str, TunnelEnd] = {}
        self.path_mtu_bytes = 1500
        """Of the smallest link on the way to every peer."""
        self.plan = TunnelPlan()
        folder.mkdir()
        self.restart()
        # A tunnel's own packets never go by the table that leads into it.
        for option in ("", "-6 "):
            rule = f"rule add priority {ROUTE_TABLE - 1} fwmark {TUNNEL_MARK} lookup main"
            node.netns.ip(f"{option}{rule}")

    @property
    def key(self) -> TunnelKey:
        return tunnel_key_of(node_key(self.node.number), self.node.grant.public_key)

    @abstractmethod
    def restart(self) -> None: ...

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Of the program that makes the tunnel; None: it is the kernel's."""

    def end(self) -> None:
        """Ends the tunnel from outside, with its device."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGKILL)

    @abstractmethod
    def wanted(self, state: TunnelState) -> TunnelState:
        """The plan as this backend takes it."""

    def mtu_bytes(self, uid: str, link_mtu_bytes: int) -> int:
        """Of routes to the peer."""
        end = self.ends.get(uid, TunnelEnd()).endpoint
        return tunnel_mtu_bytes(
            min(self.path_mtu_bytes, link_mtu_bytes),
            TUNNEL_OVERHEAD_BYTES[end[0].version if end is not None else 6],
            device_mtu_bytes=tunnel_device_mtu_bytes(link_mtu_bytes),
        )

    def connect(self, peers: Iterable[Tunnel]) -> None:
        """Every peer can be sent to."""

    def session(self, peer: Tunnel) -> Hashable:
        """Another one when what is encrypted with has been agreed on anew."""
        return self.reading(peer).last_handshake_ns

    def view(self, nodes: Mapping[str, NodeEntry]) -> TunnelView:
        view: View = self.node.view(nodes)
        made = TunnelView(view, plan_overlay(view).parts, self.ends, self.key)
        return replace(made, ifname=self.ifname)

    def settle(self, nodes: Mapping[str, NodeEntry]) -> list[TunnelChange]:
        """One round; returns what it changed. Raises: AssertionError when something failed."""
        view = self.view(nodes)
        self.plan = plan_tunnel(view)
        want = self.wanted(self.plan.state)
        with self.node.netns.entered():
            changes = diff_tunnel(want, self.kernel.observe(want), self.kernel.given)
            failures = self.kernel.apply(changes)
            assert not failures, failures  # pytest says no more of asserts in beds
            assert diff_tunnel(want, self.kernel.have, self.kernel.given) == []
            self._wait_for(want)
            self._put_routes(view, nodes)
        return changes

    def _wait_for(self, want: TunnelState) -> None:
        """A daemon beside us may take its time, on a loaded machine more of it."""
        try:
            wait_until(lambda: not self._left(want))
        except AssertionError as error:
            raise AssertionError(f"still to be done: {self._left(want)}") from error

    def _left(self, want: TunnelState) -> list[TunnelChange]:
        return diff_tunnel(want, self.kernel.observe(want), self.kernel.given)

    def left(self) -> list[TunnelChange]:
        """What the kernel lacks of what was settled last."""
        with self.node.netns.entered():
            return self._left(self.wanted(self.plan.state))

    def _put_routes(self, view: TunnelView, nodes: Mapping[str, NodeEntry]) -> None:
        routes = [
            PeerRoute(
                prefix,
                self.ifname,
                nodes[uid].grant.segments[(0, 1)[prefix.version == 6]].network_address,
                view.view.sources[prefix.version],
                PEER_METRIC,
                self.mtu_bytes(uid, view.view.own.link_mtu_bytes),
            )
            for uid, peer in self.plan.wishes.items()
            for prefix in sorted(peer.allowed, key=str)
        ]
        want = OverlayState(entries={route.key: route for route in routes})
        overlay = self.node.kernel
        assert overlay.apply(diff_overlay(want, overlay.observe(want))) == []

    def apply(self, *changes: TunnelChange) -> None:
        with self.node.netns.entered():
            assert self.kernel.apply(changes) == []

    def reading(self, peer: Tunnel) -> PeerReading:
        """What the device says of the peer just now."""
        return self.readings()[peer.key.public_key]

    def readings(self) -> Mapping[bytes, PeerReading]:
        with self.node.netns.entered():
            return self.kernel.readings()

    def remove(self) -> None:
        with self.node.netns.entered():
            if self.kernel.observe(TunnelState()).device is not None:
                self.kernel.apply([DropTunnel(self.ifname)])
        self.kernel.close()


class TunnelWithoutKernel(TunnelKernel):
    """As on a kernel without WireGuard."""

    def _kernels(self) -> None:
        return None


class WireguardTunnel(Tunnel):
    kernel: TunnelKernel
    in_kernel = False

    def restart(self) -> None:
        if hasattr(self, "kernel"):
            self.kernel.close()
        kind = TunnelKernel if self.in_kernel else TunnelWithoutKernel
        self.kernel = kind(
            self.node.route,
            log=self.folder / "wireguard.log",
            ifname=self.ifname,
            program=wireguard_go(),
        )

    @property
    def pid(self) -> int | None:
        with self.node.netns.entered():
            assert self.kernel.runs_program is not self.in_kernel
            return self.kernel.program.pid if self.kernel.runs_program else None

    def wanted(self, state: TunnelState) -> TunnelState:
        return state


class KernelWireguardTunnel(WireguardTunnel):
    in_kernel = True

    def end(self) -> None:
        self.node.netns.ip(f"link delete {self.ifname}")


class TunnelBed(OverlayBed):
    """Every node in a site of its own; the routers between them know nothing of pods."""

    def __init__(
        self,
        count: int,
        folder: Path,
        *,
        version: int = 4,
        kind: type[Tunnel] = WireguardTunnel,
    ) -> None:
        """`version`: of the underlay that the tunnels go by."""
        super().__init__(count, routed=True)
        self.version = version
        self.kind = kind
        try:
            self.tunnels = [self._tunnel(node, folder) for node in self.nodes]
            for tunnel in self.tunnels:
                tunnel.ends = {
                    other.node.uid: TunnelEnd(self.endpoint(other))
                    for other in self.tunnels
                    if other is not tunnel
                }
            self.settle_tunnels()
            for tunnel in self.tunnels:
                tunnel.connect(other for other in self.tunnels if other is not tunnel)
        except BaseException:
            self.close()
            raise

    def _tunnel(self, node: Node, folder: Path) -> Tunnel:
        # Names are unique on the whole machine: the program's sockets are in one fixed folder.
        ifname = f"lwg{os.getpid() % 10**7}.{next(_numbers) % 1000}"
        own_folder = folder / f"n{node.number}"
        tunnel = self.kind(node, own_folder, ifname)
        self.undo.callback(tunnel.remove)
        node.presence = replace(node.presence, tunnel_port=tunnel.key.port)
        return tunnel

    def endpoint(self, tunnel: Tunnel, version: int = 0) -> Endpoint:
        address = ip_address(self.underlay(tunnel.node, version or self.version))
        return address, tunnel.key.port

    def settle_tunnels(self) -> list[list[TunnelChange]]:
        entries = self.entries()
        return [tunnel.settle(entries) for tunnel in self.tunnels]

    def pairs(self) -> Iterator[tuple[Tunnel, Tunnel]]:
        yield from itertools.permutations(self.tunnels, 2)
