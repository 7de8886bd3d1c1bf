"""One encrypted tunnel: its device, peers and addresses.

The device is made when a peer may come by it, and stays from then on: a node of one site has none.
A program that makes it is started in a thread of its own, and everything else goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError
from limpet.base.ownership import TUNNEL_GROUP
from limpet.base.timer import Timer
from limpet.cluster.kinds.network import TunnelBackend
from limpet.cluster.topology.view import View
from limpet.datapath.admitted import Admitted
from limpet.datapath.tunnel.backend import TunnelBackendKernel
from limpet.datapath.tunnel.diff import (
    CallPeer,
    PeerChange,
    PutAddresses,
    PutTunnel,
    PutTunnelPeer,
    ResetPeer,
    TunnelChange,
    diff_tunnel,
)
from limpet.datapath.tunnel.planner import TunnelPlanner
from limpet.datapath.tunnel.program import TunnelProgram
from limpet.datapath.tunnel.state import PeerReading, TunnelKey, TunnelPlan, TunnelState
from limpet.datapath.tunnel.wireguard.device import GONE
from limpet.linux.netlink import address_codec, link_codec
from limpet.linux.netlink import codec as wire

_log = structlog.get_logger("tunnel")

_CALLED = 32
"""Peers that are called when the device was made just now; there may be a thousand."""
_CALL_AFTER_S = (0.05, 0.3, 1.0)
"""A device sends nothing before it is up, and does not tell when that is. A second call in a
session is one keepalive, and one before an answer none."""


class Tunnel:
    """Runs on the event loop, in the network namespace of the calling thread."""

    def __init__(
        self,
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
        self._wake = wake
        self._touched: frozenset[bytes] | None = None
        """Keys of peers that may differ from the plan; None: any may."""
        self._is_known = False
        """The kernel need not be read: nothing has changed there since the last round."""
        self._asked: dict[PeerChange, None] = {}
        """Asked for beside the plan; done in the next round."""
        self._calls = [Timer("tunnel", self._call) for _ in _CALL_AFTER_S]
        self._program = TunnelProgram(kernel.program, on_start=self._started, wake=wake)

    def begin(self) -> None:
        """Finds out whether there can be a tunnel and whether there is one. Raises: KernelError."""
        self._look()
        link = self.kernel.link
        self.needed = link is not None and link.group == TUNNEL_GROUP

    def close(self) -> None:
        """The device stays."""
        for call in self._calls:
            call.stop()
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
        """Name of the device that routes may be planned by; empty while there can be none."""
        return self.ifname if self.wanted and not self.problem else ""

    @property
    def up(self) -> bool:
        """Peers may be routed to by it now: it is there, and listens where it is to."""
        have, want = self.kernel.have.device, self.planner.want.device
        if have is None or want is None:
            return False
        return have.ours and have.up and have.port == want.port

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
        """Version of the program that makes it; empty: none runs, or it has not said yet."""
        return self._program.version

    @property
    def made_by(self) -> str:
        """As `TunnelBackendKernel.made_by`; empty while there is no device."""
        return self.kernel.made_by if self.kernel.have.device is not None else ""

    def _look(self) -> None:
        """Finds out whether there can be a tunnel."""
        try:
            kernels = self.kernel.has_kernels
            problem = "" if kernels else self.kernel.program.missing or self._program.problem
        except KernelError as error:
            problem = str(error)
        if problem and problem != self.problem:
            _log.warning(
                "there can be no encrypted tunnel", backend=self.backend.value, problem=problem
            )
        if problem or not self.needed:
            self.problem = problem
        # Else a round has to show that it is over: peers are told of a tunnel that there is.

    # What wakes it

    def resync(self) -> None:
        """The next round reads the kernel."""
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
        if message.type in (wire.RTM_NEWADDR, wire.RTM_DELADDR):
            if not self.up:
                return False
            link, ifindex = self.kernel.link, address_codec.address_ifindex(message)
            return link is not None and ifindex == link.ifindex
        if message.type not in (wire.RTM_NEWLINK, wire.RTM_DELLINK):
            return False
        if message.body[0] == wire.AF_BRIDGE or self._program.is_starting:
            return False
        if link_codec.parse_link(message).ifname != self.ifname:
            return False
        # What is notified is of some time ago, and mostly what was done here.
        link, device = self.kernel.link, self.kernel.have.device
        if link is None or device is None:
            return (link is None) != (device is None)
        return not device.ours or (link.mtu_bytes, link.up, link.group) != (
            device.mtu_bytes,
            device.up,
            TUNNEL_GROUP,
        )

    def may_talk(self, uid: str) -> bool:
        """Whether it is a peer of the tunnel."""
        return self.planner.key_of(uid) is not None

    def reset_handshake(self, uid: str, endpoint: Endpoint) -> None:
        """The next round resets the peer's handshake state and calls it at `endpoint`."""
        key = self.planner.key_of(uid)
        if key is not None:
            self._reset_and_call([(key, endpoint)])
            self._wake("a peer asked to be taken anew")

    def call_again(self, keys: Iterable[bytes]) -> None:
        """The next round resets the handshakes of these peers and calls them."""
        self._reset_and_call(self.planner.endpoints(keys))
        self._wake("handshakes with peers have crossed")

    def _reset_and_call(self, peers: Iterable[tuple[bytes, Endpoint]]) -> None:
        for key, endpoint in peers:
            self._ask(ResetPeer(key), PutTunnelPeer(key, endpoint=endpoint), CallPeer(key))

    def set_endpoints_again(self, keys: Iterable[bytes]) -> None:
        """The device sends to these peers elsewhere than planned: the next round puts it right."""
        planned = self.planner.endpoints(keys)
        self._ask(*(PutTunnelPeer(key, endpoint=endpoint) for key, endpoint in planned))
        self._wake("peers' endpoints are not those of their paths")

    def _ask(self, *changes: PeerChange) -> None:
        """For the next round that can; whoever asks again asks for the same."""
        self._asked |= dict.fromkeys(changes)

    def look_at_program(self) -> None:
        """Wakes a round when the program does not answer; to be called every second."""
        program = self.kernel.program
        if (program.hangs or program.is_in_doubt) and not self._program.is_starting:
            self._is_known = False
            self._wake("the tunnel's program does not answer")

    # A round

    def replan(self, view: View, admitted: Mapping[str, Admitted]) -> None:
        """Plans from these; `admitted` was planned from `view`."""
        self.needed = self.needed or self.planner.is_needed(view, admitted)
        if not self.needed:
            return
        if self.problem:
            self._look()
        addresses = self.plan.addresses
        self._touched = self.planner.replan(view, admitted)
        self._is_known &= self.plan.addresses == addresses

    def take_failure(self) -> str:
        """Failure of its program's last start, told once; then it has to wait for another round."""
        return self._program.take_failure()

    def look(self) -> TunnelState | None:
        """The kernel's state; None: nothing can be set on it now. Raises: KernelError."""
        want = self.planner.want
        if not self.needed:
            return None
        if want.device is not None and self.kernel.program.hangs:
            self._has_to_start(hangs=True)
            return None
        if want.device is not None and self._program.is_starting:
            # Its link may be there before it answers, and would look like a stranger's.
            if self.kernel.link is None:
                self.kernel.have = TunnelState()  # one that hung was ended: nothing leads by it
            return None
        if not self._is_known:
            self._touched = None
            self.kernel.observe(want)
        have = self.kernel.have
        if want.device is not None and have.device is None and self._has_to_start():
            return None
        return have

    def changes(self, have: TunnelState) -> list[TunnelChange]:
        """From `have` to the plan, after what was asked for beside it."""
        want = self.planner.want
        asked, self._asked = self._asked, {}
        found: list[TunnelChange] = []
        if have.device is not None:
            found += (each for each in asked if each.public_key in want.peers)
        found += diff_tunnel(want, have, self.kernel.given, self._touched)
        put = any(isinstance(each, PutTunnel) for each in found)
        addresses = self.plan.addresses
        if want.device is not None and (
            put or (not self._is_known and self.kernel.needed_addresses(addresses))
        ):
            found.append(PutAddresses(addresses))
        return found

    def apply(self, have: TunnelState, changes: Iterable[TunnelChange]) -> tuple[list[str], bool]:
        """Tries every change; returns the failures, and whether the device was made or set up from
        nothing: routes by it are to be put again."""
        # A device that was started just now has no key yet.
        wanted = self.planner.want.device is not None
        made = wanted and (have.device is None or not have.device.private_key)
        failures = [str(each) for each in self.kernel.apply(changes)]
        if made and self.up:
            for call, delay_s in zip(self._calls, _CALL_AFTER_S, strict=True):
                call.set_in(delay_s)
        self.made |= made
        self._is_known = not failures
        self._settle_problem(failures)
        self._settle_end(failures)
        return failures, made and self.up

    def broke_off(self) -> None:
        """A round ended before it was through."""
        self._is_known = self.planner.is_relied_on = False

    def _has_to_start(self, *, hangs: bool = False) -> bool:
        """Its program is being started, or cannot be: nothing can be set on it now.

        `hangs`: it runs, and gives no answer. Raises: KernelError.
        """
        if self.kernel.has_kernels:
            return False
        gone = self.kernel.link is None
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
        """Calls peers: some have called while there was no device, and try again after seconds."""
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
        """A tunnel that the cluster does not name any more is made again when a peer needs it."""
        if not self.wanted and not failures and not self._program.is_starting:
            self.needed = False
            self.problem = ""
            self._program.forget()

    # What is read of it

    def readings(self) -> Mapping[bytes, PeerReading]:
        """Readings of peers by their keys; empty where there is no device. Raises: KernelError."""
        if not self.up:
            return {}
        try:
            return self.kernel.readings()
        except KernelError as error:
            if error.errno in GONE:
                return {}
            raise

    def last_readings(self) -> Mapping[bytes, PeerReading]:
        """As `readings`; empty where they cannot be read, which a round puts right."""
        try:
            return self.readings()
        except KernelError:
            return {}
