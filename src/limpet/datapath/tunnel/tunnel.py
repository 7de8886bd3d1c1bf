"""One encrypted tunnel: its device, peers and addresses.

The device is made when a peer may come by it, and stays from then on: a node of one site has none.
A program that makes it is started in a thread of its own, and everything else waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from limpet.base.addresses import Endpoint, InterfaceAddress
from limpet.base.errors import KernelError
from limpet.base.ownership import TUNNEL_GROUP
from limpet.cluster.kinds.network import TunnelBackend
from limpet.cluster.topology.view import View
from limpet.datapath.admitted import Admitted
from limpet.datapath.tunnel.backend import TunnelBackendKernel
from limpet.datapath.tunnel.diff import (
    CallPeer,
    PutAddresses,
    PutTunnel,
    PutTunnelPeer,
    TakePeerAnew,
    TunnelChange,
    diff_tunnel,
)
from limpet.datapath.tunnel.link import marked_rules, needed_addresses
from limpet.datapath.tunnel.plan import tunnel_is_needed
from limpet.datapath.tunnel.planner import TunnelPlanner
from limpet.datapath.tunnel.program import TunnelProgram
from limpet.datapath.tunnel.state import PeerReading, TunnelKey, TunnelPlan, TunnelState
from limpet.datapath.tunnel.wireguard.device import GONE
from limpet.linux.netlink import address_codec, link_codec
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket

_log = structlog.get_logger("tunnel")

_CALLED = 32
"""Peers that are called when the device was made just now; there may be a thousand."""
_CALL_AFTER_S = (0.05, 0.3, 1.0)
"""It says nothing before it is up, and does not tell when that is; a second call in a session is
one keepalive, and one before an answer none."""
_LINK_MESSAGES = (wire.RTM_NEWLINK, wire.RTM_DELLINK)
_ADDRESS_MESSAGES = (wire.RTM_NEWADDR, wire.RTM_DELADDR)


class Tunnel:
    """Runs on the event loop, in the network namespace of the calling thread."""

    def __init__(
        self,
        route: RouteSocket,
        kernel: TunnelBackendKernel,
        planner: TunnelPlanner,
        wake: Callable[[str], None],
    ) -> None:
        """`wake`: a round is needed soon."""
        self.kernel = kernel
        self.planner = planner
        self.problem = ""
        """Why this node has no tunnel; empty: it has one, or can."""
        self.wanted = True
        """The cluster names its backend."""
        self.needed = False
        """Some peer may come, or is sent to, by the tunnel."""
        self.made = False
        """The device was made since the start of the agent."""
        self._route = route
        self._wake = wake
        self._touched: frozenset[bytes] | None = None
        """Keys of peers that may differ; None: the kernel has to be read anew."""
        self._is_known = False
        self._asked = _Asked()
        self._program = TunnelProgram(kernel.program, on_start=self._started, wake=wake)

    def begin(self) -> None:
        """Whether there can be a tunnel, and whether there is one already. Raises: KernelError."""
        self._look()
        link = self._route.link(self.ifname)
        self.needed = link is not None and link.group == TUNNEL_GROUP

    def close(self) -> None:
        """The device stays."""
        self._asked.stop_calls()
        self._program.close()
        self.kernel.close()

    @property
    def ifname(self) -> str:
        return self.planner.ifname

    @property
    def backend(self) -> TunnelBackend:
        return self.planner.backend

    @property
    def key(self) -> TunnelKey:
        return self.planner.key

    @property
    def plan(self) -> TunnelPlan:
        return self.planner.plan

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

    def resync(self) -> None:
        """The next round takes nothing for granted."""
        self._is_known = False
        if self.problem:
            self._look()

    def hear(self, message: wire.Message) -> bool:
        """Takes a notification; True: by it something is not as planned, and a round is needed."""
        if not self.needed or not self._is_other(message):
            return False
        self._is_known = False
        return True

    def _is_other(self, message: wire.Message) -> bool:
        if message.type in _ADDRESS_MESSAGES:
            return self.up and address_codec.address_ifindex(message) == self._ifindex()
        if message.type not in _LINK_MESSAGES or message.body[0] == wire.AF_BRIDGE:
            return False
        if link_codec.parse_link(message).ifname != self.ifname or self._program.is_starting:
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

    def may_talk(self, uid: str) -> bool:
        """Whether it is a peer of the tunnel."""
        return self.planner.key_of(uid) is not None

    def take_anew(self, uid: str, endpoint: Endpoint) -> None:
        """What was heard of the peer is forgotten, and it is called where it is now."""
        key = self.planner.key_of(uid)
        if key is not None:
            self._asked.anew[key] = endpoint
            self._wake("a peer asked to be taken anew")

    def set_endpoints_again(self, keys: Iterable[bytes]) -> None:
        """The device has others than are planned."""
        self._asked.astray |= set(keys)
        self._wake("peers' endpoints are not those of their paths")

    def look_at_program(self) -> None:
        """Called now and then: one that does not answer any more is started anew."""
        if (self.kernel.hangs or self.kernel.is_in_doubt) and not self._program.is_starting:
            self._is_known = False
            self._wake("the tunnel's program does not answer")

    # A round

    def replan(self, view: View, admitted: Mapping[str, Admitted]) -> None:
        """From now on it should be as follows from these; `admitted` was planned from `view`."""
        self.needed = self.needed or tunnel_is_needed(view, admitted, self.backend)
        if not self.needed:
            return
        if self.problem:
            self._look()
        addresses = self.plan.addresses
        self._touched = self.planner.replan(view, admitted)
        self._is_known &= self.plan.addresses == addresses

    def take_failure(self) -> str:
        """Of the last start of its program, told once; then it has to wait for another round."""
        return self._program.take_failure()

    def look(self) -> TunnelState | None:
        """What is; None: nothing can be set on it now. Raises: KernelError."""
        want = self.planner.want
        if not self.needed:
            return None
        if want.device is not None and self.kernel.hangs:
            self._has_to_start(hangs=True)
            return None
        if not self._is_known:
            self._touched = None
            self.kernel.observe(want)
        have = self.kernel.have
        if want.device is not None and have.device is None and self._has_to_start():
            return None
        return have

    def changes(self, have: TunnelState) -> list[TunnelChange | PutAddresses]:
        """From what is to what should be, and to what was asked for beside the plan."""
        want = self.planner.want
        found: list[TunnelChange | PutAddresses] = [
            *diff_tunnel(want, have, self.kernel.given, self._touched)
        ]
        found += self._asked.take(want, have)
        put = any(isinstance(each, PutTunnel) for each in found)
        if want.device is not None and (put or (not self._is_known and self._needs_addresses())):
            found.append(PutAddresses(self.plan.addresses))
        return found

    def _needs_addresses(self) -> bool:
        return bool(needed_addresses(self._route, self.ifname, self.plan.addresses))

    def apply(
        self, have: TunnelState, changes: Iterable[TunnelChange | PutAddresses]
    ) -> tuple[list[str], bool]:
        """Tries every change. Failures, and whether the device was made or set up anew: routes by
        it are to be put again."""
        todo = [each for each in changes if not isinstance(each, PutAddresses)]
        # One that was started just now has no key yet.
        wanted = self.planner.want.device is not None
        made = wanted and (have.device is None or not have.device.private_key)
        failures = [str(each) for each in self.kernel.apply(todo)]
        if made and not failures:
            self._asked.call_soon(self._call)
        for each in changes:
            if isinstance(each, PutAddresses):
                failures += self._put_addresses(each.addresses)
        self.made |= made
        self._is_known = not failures
        self._settle_problem(failures)
        self._settle_end(failures)
        return failures, made and self.up

    def broke_off(self) -> None:
        """A round ended before it was through."""
        self._is_known = self.planner.is_relied_on = False

    def _put_addresses(self, addresses: Collection[InterfaceAddress]) -> list[str]:
        try:
            requests = needed_addresses(self._route, self.ifname, addresses)
            self._route.apply(*requests)
        except KernelError as error:
            return [str(error)]
        return []

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
        self._is_known = False
        self._wake("the tunnel's program was started")

    def _call(self) -> None:
        """Peers may have called while there was no device, and try again after seconds only."""
        peers = self.planner.want.peers.values()
        keys = [each.public_key for each in peers if each.endpoint is not None]
        if self.up:
            self.kernel.apply([CallPeer(key) for key in keys[:_CALLED]])

    def _settle_problem(self, failures: list[str]) -> None:
        if self.plan.state.device is None:
            return
        if self.up:
            self.problem = ""
        elif failures:
            self.problem = failures[0]
        if self.up and self.kernel.runs_program and not self.version:
            self._program.read_version_soon()

    def _settle_end(self, failures: list[str]) -> None:
        """It is made again when a peer needs it."""
        if not self.wanted and not failures and not self._program.is_starting:
            self.needed = False
            self.problem = ""
            self._program.forget()

    # What is read of it

    def rules(self) -> frozenset[int]:
        """IP versions with the rule for the tunnels' own packets. Raises: KernelError."""
        return marked_rules(self._route) if self.needed else frozenset()

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


class _Asked:
    """What was asked for beside the plan."""

    def __init__(self) -> None:
        self.anew: dict[bytes, Endpoint] = {}
        """Peers that have asked to be taken anew, and where from."""
        self.astray: set[bytes] = set()
        """Peers that the device looks for elsewhere than planned."""
        self._calls: list[asyncio.TimerHandle] = []

    def take(self, want: TunnelState, have: TunnelState) -> list[TunnelChange]:
        """As changes, once."""
        peers = want.peers
        anew, self.anew = self.anew, {}
        astray, self.astray = self.astray & peers.keys(), set()
        if have.device is None:
            return []
        return [
            *(
                change
                for key in sorted(anew.keys() & peers.keys())
                for change in (
                    TakePeerAnew(key),
                    PutTunnelPeer(key, endpoint=anew[key]),
                    CallPeer(key),
                )
            ),
            *(PutTunnelPeer(key, endpoint=peers[key].endpoint) for key in sorted(astray)),
        ]

    def call_soon(self, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._calls = [loop.call_later(delay_s, call) for delay_s in _CALL_AFTER_S]

    def stop_calls(self) -> None:
        for call in self._calls:
            call.cancel()
