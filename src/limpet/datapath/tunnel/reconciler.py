"""An encrypted tunnel's part of the rounds: its device, peers, addresses and rules.

The device is made when a peer may come by it, and stays from then on: a node of one site has none.
A program that makes it is started in a thread of its own, and everything else waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError, LimpetError
from limpet.base.ownership import TUNNEL_GROUP
from limpet.cluster.kinds.network import TunnelBackend
from limpet.cluster.topology.tunnel_end import TunnelEnd
from limpet.cluster.topology.view import View
from limpet.datapath.admitted import Admitted
from limpet.datapath.tunnel.diff import (
    CallPeer,
    DropTunnel,
    PutTunnel,
    PutTunnelPeer,
    TakePeerAnew,
    TunnelChange,
    diff_tunnel,
)
from limpet.datapath.tunnel.ipsec.plan import ipsec_state
from limpet.datapath.tunnel.link import (
    drop_marked_rules,
    marked_rules,
    put_addresses,
    put_marked_rules,
)
from limpet.datapath.tunnel.plan import (
    TunnelView,
    plan_tunnel,
    replan_tunnel,
    tunnel_ends,
    tunnel_is_needed,
)
from limpet.datapath.tunnel.program import TunnelProgram
from limpet.datapath.tunnel.state import PeerReading, TunnelKey, TunnelPlan, TunnelState
from limpet.datapath.tunnel.wireguard.apply import TunnelKernel
from limpet.datapath.tunnel.wireguard.device import GONE
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.netlink.tunnel_rule import parse_mark_rule

if TYPE_CHECKING:
    from limpet.datapath.tunnel.ipsec.apply import IpsecKernel

_log = structlog.get_logger("tunnel")

_CALLED = 32
"""Peers that are called when the device was made just now; there may be a thousand."""
_CALL_AFTER_S = (0.05, 0.3, 1.0)
"""It says nothing before it is up, and does not tell when that is; a second call in a session is
one keepalive, and one before an answer none."""
_RULE_MESSAGES = (wire.RTM_NEWRULE, wire.RTM_DELRULE)
_LINK_MESSAGES = (wire.RTM_NEWLINK, wire.RTM_DELLINK)
_ADDRESS_MESSAGES = (wire.RTM_NEWADDR, wire.RTM_DELADDR)


@dataclass(frozen=True, slots=True)
class TunnelRound:
    """What a round did."""

    changes: int = 0
    failures: tuple[str, ...] = ()
    made: bool = False
    """The device was made or set up anew: routes by it are to be put again."""


class TunnelReconciler:
    """Runs on the event loop, in the network namespace of the calling thread."""

    def __init__(
        self,
        route: RouteSocket,
        kernel: TunnelKernel | IpsecKernel,
        key: TunnelKey,
        *,
        ifname: str,
        wake: Callable[[str], None],
        backend: TunnelBackend = TunnelBackend.WIREGUARD,
    ) -> None:
        """`wake`: a round is needed soon."""
        self.kernel = kernel
        self.backend = backend
        self.key = key
        self.ifname = ifname
        self.problem = ""
        """Why this node has no tunnel; empty: it has one, or can."""
        self.wanted = True
        """The cluster names its backend."""
        self.others_need_rules: Callable[[], bool] = lambda: False
        """Another tunnel of the node has the same."""
        self.plan = TunnelPlan()
        self._want = TunnelState()
        self.made = False
        """The device was made since the start of the agent."""
        self._route = route
        self._wake = wake
        self._view: TunnelView | None = None
        self._ends: tuple[View, Mapping[str, TunnelEnd]] | None = None
        self.needed = False
        """Some peer may come, or is sent to, by the tunnel."""
        self._anew = True
        """The kernel has to be read anew."""
        self._whole = True
        self._plan_anew = True
        self._anew_keys: dict[bytes, Endpoint] = {}
        """Peers that have asked to be taken anew, and where from."""
        self._astray: set[bytes] = set()
        self._program = TunnelProgram(kernel.program, on_start=self._started, wake=wake)
        self._calls: list[asyncio.TimerHandle] = []

    def begin(self) -> None:
        """Whether there can be a tunnel, and whether there is one already. Raises: KernelError."""
        self._look()
        link = self._route.link(self.ifname)
        self.needed = link is not None and link.group == TUNNEL_GROUP

    def close(self) -> None:
        """The device stays."""
        for call in self._calls:
            call.cancel()
        self._program.close()
        self.kernel.close()

    @property
    def device(self) -> str:
        """Its name for the plan; empty while there can be none."""
        return self.ifname if self.wanted and not self.problem else ""

    @property
    def up(self) -> bool:
        """Peers may be routed to by it now."""
        device = self.kernel.have.device
        return device is not None and device.ours and self.plan.state.device is not None

    @property
    def trouble(self) -> str:
        """What a person should know of; empty: all is well, or the cluster wants no such tunnel."""
        if not self.wanted:
            return ""
        return self.problem or (self.kernel.problem if self.needed else "")

    @property
    def is_gone(self) -> bool:
        """Nothing of it is left."""
        return not self.needed and not self._program.is_starting

    @property
    def version(self) -> str:
        """Of the program that makes it; empty: none runs, or it has not said yet."""
        return self._program.version

    @property
    def made_by(self) -> str:
        """What the kernel's side says, or empty while there is no device."""
        return self.kernel.made_by if self.kernel.have.device is not None else ""

    def _look(self) -> None:
        try:
            kernels = self.kernel.has_kernels
            problem = "" if kernels else self.kernel.program.missing or self._program.problem
        except KernelError as error:
            problem = str(error)
        if problem != self.problem:
            self.problem = problem
            if problem:
                _log.warning(
                    "there can be no encrypted tunnel", backend=self.backend.value, problem=problem
                )

    # What wakes it

    def look_at_everything(self) -> None:
        """The next round takes nothing for granted."""
        self._anew = self._whole = True
        if self.problem:
            self._look()

    def hear(self, message: wire.Message | None) -> bool:
        """Takes a notification; True: by it something is not as planned, and a round is needed."""
        if message is None:
            self._anew = self._whole = True
            return False
        if not self.needed or not self._is_other(message):
            return False
        self._anew = self._whole = True
        return True

    def _is_other(self, message: wire.Message) -> bool:
        if message.type in _RULE_MESSAGES:
            return message.type == wire.RTM_DELRULE and parse_mark_rule(message) is not None
        if message.type in _ADDRESS_MESSAGES:
            return self.up and wire.address_ifindex(message) == self._ifindex()
        if message.type not in _LINK_MESSAGES or message.body[0] == wire.AF_BRIDGE:
            return False
        if wire.parse_link(message).ifname != self.ifname or self._program.is_starting:
            return False
        # What is notified is of some time ago, and mostly what was done here.
        link, device = self._route.link(self.ifname), self.kernel.have.device
        if link is None or device is None:
            return (link is None) != (device is None)
        return not device.ours or (link.mtu_bytes, link.up, link.group) != (
            device.mtu_bytes,
            device.up,
            TUNNEL_GROUP,
        )

    def _ifindex(self) -> int:
        link = self._route.link(self.ifname)
        return link.ifindex if link is not None else 0

    def key_of(self, uid: str) -> bytes | None:
        """None: it is no peer of the tunnel."""
        part = self.plan.parts.get(uid)
        return part.peer.public_key if part is not None and part.peer is not None else None

    def may_talk(self, uid: str) -> bool:
        """Whether it is a peer of the tunnel."""
        return self.key_of(uid) is not None

    def take_anew(self, uid: str, endpoint: Endpoint) -> None:
        """What was heard of the peer is forgotten, and it is called where it is now."""
        part = self.plan.parts.get(uid)
        if part is not None and part.peer is not None:
            self._anew_keys[part.peer.public_key] = endpoint
            self._wake("a peer asked to be taken anew")

    def set_endpoints_again(self, keys: Iterable[bytes]) -> None:
        """The device has others than are planned."""
        self._astray |= set(keys)
        self._wake("peers' endpoints are not those of their paths")

    def look_at_program(self) -> None:
        """Called now and then: one that does not answer any more is started anew."""
        if (self.kernel.hangs or self.kernel.is_in_doubt) and not self._program.is_starting:
            self._anew = True
            self._wake("the tunnel's program does not answer")

    # A round

    def round(self, view: View, admitted: Mapping[str, Admitted]) -> TunnelRound:
        """Plan, observe where that is due, diff, apply; `admitted` was planned from `view`.

        A failure is told, and keeps nobody from going on without a tunnel.
        """
        try:
            return self._round(view, admitted)
        except LimpetError as error:
            self._anew = self._whole = self._plan_anew = True
            return TunnelRound(failures=(str(error),))

    def _round(self, view: View, admitted: Mapping[str, Admitted]) -> TunnelRound:
        failure = self._program.take_failure()
        if failure:
            return TunnelRound(failures=(failure,))
        self.needed = self.needed or tunnel_is_needed(view, admitted, self.backend)
        if not self.needed:
            return TunnelRound()
        if self.problem:
            self._look()
        touched = self._replan(view, admitted)
        want = self._want = self._wanted_state(view)
        if want.device is not None and self.kernel.hangs:
            self._has_to_start(hangs=True)
            return TunnelRound()
        anew = self._anew
        have = self.kernel.observe(want) if anew else self.kernel.have
        if want.device is not None and have.device is None and self._has_to_start():
            return TunnelRound()
        changes = [*diff_tunnel(want, have, self.kernel.given, touched), *self._beside(have.device)]
        # One that was started just now has no key yet.
        made = want.device is not None and (have.device is None or not have.device.private_key)
        failures = [str(each) for each in self.kernel.apply(changes)]
        if made and not failures:
            loop = asyncio.get_running_loop()
            self._calls = [loop.call_later(delay_s, self._call) for delay_s in _CALL_AFTER_S]
        changed = len(changes)
        if anew or any(isinstance(each, PutTunnel | DropTunnel) for each in changes):
            changed += self._put_surroundings(failures)
        self.made |= made
        self._anew = self._whole = bool(failures)
        self._settle_problem(changes, failures)
        self._settle_end(failures)
        return TunnelRound(changed, tuple(failures), made and self.up)

    def _replan(self, view: View, admitted: Mapping[str, Admitted]) -> frozenset[bytes] | None:
        """Keys of peers that may differ; None: any may."""
        ends = tunnel_ends(view, self._ends)
        seen = TunnelView(view, admitted, ends, self.key, self.ifname, self.backend)
        addresses = self.plan.addresses
        if self._plan_anew or self._view is None:
            self.plan, touched = plan_tunnel(seen), None
        else:
            self.plan, touched = replan_tunnel(self.plan, self._view, seen)
        self._ends, self._view, self._plan_anew = (view, ends), seen, False
        self._anew |= self.plan.addresses != addresses
        return None if self._whole or self._anew else touched

    def _wanted_state(self, view: View) -> TunnelState:
        if self.backend is not TunnelBackend.IPSEC or view.grant is None:
            return self.plan.state
        versions = {prefix.version for prefix in view.grant.segments}
        return ipsec_state(self.plan.state, self.ifname, versions)

    def _has_to_start(self, *, hangs: bool = False) -> bool:
        """Its program is being started, or cannot be: nothing can be set on it now.

        `hangs`: it runs, and gives no answer. Raises: KernelError.
        """
        if self.kernel.has_kernels:
            return False
        gone = self._route.link(self.ifname) is None
        if not (hangs or gone) and self.kernel.program.pid is not None:
            return False
        self._program.start(ends=gone or hangs)
        self.problem = self.problem or self._program.problem
        return True

    def _started(self) -> None:
        self.problem = self._program.problem or self.problem
        self._anew = self._whole = True
        self._wake("the tunnel's program was started")

    def _beside(self, found: object) -> list[TunnelChange]:
        """What was asked for beside the plan."""
        peers = self._want.peers
        keys, self._anew_keys = self._anew_keys, {}
        astray, self._astray = self._astray & peers.keys(), set()
        if found is None:
            return []
        return [
            *(
                change
                for key in sorted(keys.keys() & peers.keys())
                for change in (
                    TakePeerAnew(key),
                    PutTunnelPeer(key, endpoint=keys[key]),
                    CallPeer(key),
                )
            ),
            *(PutTunnelPeer(key, endpoint=peers[key].endpoint) for key in sorted(astray)),
        ]

    def _call(self) -> None:
        """Peers may have called while there was no device, and try again after seconds only."""
        peers = self._want.peers.values()
        keys = [each.public_key for each in peers if each.endpoint is not None]
        if self.up:
            self.kernel.apply([CallPeer(key) for key in keys[:_CALLED]])

    def _put_surroundings(self, failures: list[str]) -> int:
        """The number of changes."""
        try:
            if self.plan.state.device is None:
                return 0 if self.others_need_rules() else len(drop_marked_rules(self._route))
            rules = put_marked_rules(self._route)
            return len(rules) + len(put_addresses(self._route, self.ifname, self.plan.addresses))
        except KernelError as error:
            failures.append(str(error))
            return 0

    def _settle_problem(self, changes: Iterable[TunnelChange], failures: list[str]) -> None:
        if self.plan.state.device is None:
            return
        if self.up:
            self.problem = ""
        elif failures:
            self.problem = failures[0]
        if self.up and self.kernel.process is not None and not self.version:
            self._program.read_version_soon()

    def _settle_end(self, failures: list[str]) -> None:
        """It is made again when a peer needs it."""
        if not self.wanted and not failures and not self._program.is_starting:
            self.needed = False
            self.problem = ""
            self._program.forget()

    # What is read of it

    def readings(self) -> Mapping[bytes, PeerReading]:
        """Of every peer, by its key; empty where there is no device. Raises: KernelError."""
        if not self.up:
            return {}
        try:
            return self.kernel.readings()
        except KernelError as error:
            if error.errno in GONE:
                return {}
            raise

    def rules(self) -> frozenset[int]:
        """IP versions with the rule for the tunnel's own packets. Raises: KernelError."""
        return marked_rules(self._route) if self.needed else frozenset()

    def planned_endpoints(self, keys: Iterable[bytes]) -> list[tuple[bytes, Endpoint]]:
        peers = self._want.peers
        return [
            (key, endpoint)
            for key in keys
            if key in peers and (endpoint := peers[key].endpoint) is not None
        ]

    def uids(self, keys: Iterable[bytes]) -> frozenset[str]:
        """Of the peers with these keys."""
        holders = self.plan.holders
        return frozenset(holders[key] for key in keys if key in holders)
