"""The part of the loop for encrypted tunnels: WireGuard's, and IPsec's where the cluster names it.

Each has a device of its own; `cluster.topology.reach` says which makes the tunnel to a peer.
They share one visible UDP port, and rules that keep their own packets out of our routing table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from limpet.base.addresses import Endpoint
from limpet.base.errors import LimpetError
from limpet.cluster.identity import Identity
from limpet.cluster.kinds.network import Network, TunnelBackend
from limpet.cluster.topology.reach import backends_of
from limpet.datapath.own_node import TunnelNames, is_of_a_pod
from limpet.datapath.part import Part
from limpet.datapath.peers import Peers
from limpet.datapath.tunnel.diff import TunnelChange
from limpet.datapath.tunnel.owned import marked_rules, needed_rules, owned_by_tunnels
from limpet.datapath.tunnel.setup import TunnelMaker, TunnelSetup
from limpet.datapath.tunnel.state import PeerReading, TunnelKey, TunnelState
from limpet.datapath.tunnel.tunnel import Tunnel
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.route_codec import RT_TABLE_MAIN, parse_rule
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.owned import Owned


@dataclass(frozen=True, slots=True)
class TunnelsState:
    """The state of each tunnel that can be changed now."""

    have: tuple[tuple[Tunnel, TunnelState], ...] = ()
    rules: tuple[wire.Request, ...] = ()
    """What makes the rules as they should be."""


Change = tuple[Tunnel, TunnelChange] | wire.Request
"""A change of one tunnel, or of a rule."""


class TunnelPart(Part[TunnelsState, Change]):
    """Runs on the event loop, in the network namespace of the calling thread."""

    name = "tunnel"
    groups = (1, 5, 9, 8, 19)
    """RTNLGRP_LINK, IPV4_IFADDR, IPV6_IFADDR, IPV4_RULE, IPV6_RULE."""

    def __init__(
        self, peers: Peers, route: RouteSocket, identity: Identity, setup: TunnelSetup
    ) -> None:
        self._maker = TunnelMaker(route, identity, setup, peers.wake)
        self.wireguard = self._maker.wireguard()
        self.ipsec: Tunnel | None = None
        """None: the cluster names no IPsec, and nothing of it is left here."""
        self._peers = peers
        self._route = route
        self._failure = ""
        """Why there is no IPsec although the cluster names it."""
        self._failures: list[str] = []
        """Failures of this round, so far."""
        self._shares_port = False
        """IPsec's daemon listens behind WireGuard's port."""
        self._round = TunnelsState()
        """The tunnels that take part in this round."""
        self._is_damaged = False
        self._has_rules: bool | None = None
        """Our rules are there, or are not; None: unknown."""

    @staticmethod
    def owned(run_dir: Path) -> Owned:
        return owned_by_tunnels(run_dir)

    @property
    def key(self) -> TunnelKey:
        return self.wireguard.key

    @property
    def all(self) -> tuple[Tunnel, ...]:
        return (self.wireguard,) if self.ipsec is None else (self.wireguard, self.ipsec)

    @property
    def device(self) -> str:
        """Name of the first device that the node can have; empty: it can have no tunnel."""
        return next((each.device for each in self.all if each.device), "")

    def begin(self, network: Network | None) -> None:
        """Finds out which tunnels there can be, and which there are. Raises: KernelError."""
        self.follow(network)
        self.wireguard.begin()
        if self.ipsec is None and self._maker.ipsec_is_left():
            self._make_ipsec()
        self._tell()

    def close(self) -> None:
        """The devices stay."""
        for tunnel in self.all:
            tunnel.close()

    # What wakes it

    def follow(self, network: Network | None) -> None:
        """Makes and wants the tunnels of the backends that the cluster names now."""
        named = backends_of(network)
        shares_port = len(named) > 1
        if TunnelBackend.IPSEC in named and (
            self.ipsec is None or shares_port is not self._shares_port
        ):
            self._shares_port = shares_port
            self._make_ipsec()
        for tunnel in self.all:
            tunnel.wanted = tunnel.backend in named
        self._tell()

    def resync(self) -> None:
        self._has_rules = None
        for tunnel in self.all:
            tunnel.resync()

    def hear(self, message: wire.Message) -> None:
        if is_of_a_pod(message):
            return
        if message.type == wire.RTM_DELRULE:
            rule = parse_rule(message)
            if rule.mark and rule.table == RT_TABLE_MAIN:
                self._is_damaged, self._has_rules = True, None
        for tunnel in self.all:
            self._is_damaged |= tunnel.hear(message)

    def damage(self) -> str:
        damaged, self._is_damaged = self._is_damaged, False
        return "a tunnel is not as planned" if damaged else ""

    def reset_handshake(self, uid: str, endpoint: Endpoint) -> None:
        """Resets the handshake state of a peer whose clock jumped, and calls it at `endpoint`."""
        for tunnel in self.all:
            tunnel.reset_handshake(uid, endpoint)

    # A round: what fails in one tunnel is a failure of the round, and does not stop the others.

    def plan(self) -> TunnelsState:
        self._failures = [self._failure] if self._failure else []
        have = []
        for tunnel in self._in_order():
            failure = tunnel.take_failure()
            if failure:
                self._failures.append(failure)
                continue
            with self._guarded(tunnel):
                tunnel.replan(self._peers.view, self._peers.admitted)
                have.append((tunnel, tunnel.planner.want))
        self._round = TunnelsState(tuple(have))
        return self._round

    def state(self, want: TunnelsState) -> TunnelsState:
        found = []
        for tunnel, _ in want.have:
            with self._guarded(tunnel):
                have = tunnel.look()
                if have is not None:
                    found.append((tunnel, have))
        rules = []
        if self._has_rules is not self._wants_rules:
            rules = needed_rules(self._route, wanted=self._wants_rules)
        self._round = TunnelsState(tuple(found), tuple(rules))
        return self._round

    @property
    def _wants_rules(self) -> bool:
        return any(each.plan.state.device is not None for each in self.all)

    def diff(self, want: TunnelsState, have: TunnelsState) -> list[Change]:
        changes: list[Change] = [*have.rules]
        for tunnel, state in have.have:
            with self._guarded(tunnel):
                changes += [(tunnel, change) for change in tunnel.changes(state)]
        return changes

    def apply(self, changes: Sequence[Change]) -> list[str]:
        failures, self._failures = self._failures, []
        tried = self._route.try_each(each for each in changes if isinstance(each, wire.Request))
        failures += [str(error) for error in tried if error is not None]
        self._has_rules = None if failures else self._wants_rules
        made = False
        for tunnel, have in self._round.have:
            with self._guarded(tunnel):
                own = [c[1] for c in changes if isinstance(c, tuple) and c[0] is tunnel]
                failed, is_made = tunnel.apply(have, own)
                failures += failed
                made |= is_made
        failures += self._failures
        if self.ipsec is not None and not self.ipsec.wanted and self.ipsec.is_gone:
            self._close_ipsec()
        down = frozenset(each.ifname for each in self.all if not each.up)
        self._peers.set_devices(down=down, made=made)
        if self._tell():
            self._peers.wake("other tunnels are possible now")
        return failures

    def broke_off(self, error: Exception) -> None:
        for tunnel in self.all:
            tunnel.broke_off()

    @contextmanager
    def _guarded(self, tunnel: Tunnel) -> Iterator[None]:
        try:
            yield
        except LimpetError as error:
            tunnel.broke_off()
            self._failures.append(str(error))

    def _in_order(self) -> list[Tunnel]:
        """The tunnel that has to leave the port to the other first."""
        return sorted(
            self.all, key=lambda each: (each.wanted, each.backend is not TunnelBackend.IPSEC)
        )

    def _tell(self) -> bool:
        """Tells the plan which tunnels there can be; True: others than before."""
        ipsec = self.ipsec.device if self.ipsec is not None else ""
        names = TunnelNames(self.wireguard.device, ipsec, self.key.port)
        return self._peers.own.set_tunnels(names)

    def _make_ipsec(self) -> None:
        """Replaces the IPsec tunnel; its daemon runs on until a round puts it right."""
        self._close_ipsec()
        try:
            made = self._maker.ipsec(shares_port=self._shares_port)
            made.begin()
        except LimpetError as error:
            self._failure = str(error)
            return
        self.ipsec, self._failure = made, ""

    def _close_ipsec(self) -> None:
        if self.ipsec is not None:
            self.ipsec.close()
            self.ipsec = None

    # What is read of them

    def readings_by_uid(self) -> Mapping[str, PeerReading]:
        """What the devices say of each peer."""
        return {
            tunnel.plan.holders[key]: reading
            for tunnel in self.all
            for key, reading in tunnel.last_readings().items()
            if key in tunnel.plan.holders
        }

    def rules(self) -> frozenset[int]:
        """IP versions with the rule for the tunnels' own packets. Raises: KernelError."""
        return marked_rules(self._route)
