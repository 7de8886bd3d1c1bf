"""The part of the loop that holds this node's pods to their network policies."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import structlog

from limpet.base.addresses import Address
from limpet.base.errors import KernelError
from limpet.base.ownership import NFT_POLICY_SPARE_TABLE, NFT_POLICY_TABLE
from limpet.datapath.loop import Loop
from limpet.datapath.part import Part
from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.peer_sets import Planned
from limpet.datapath.policy.ruleset import NOTHING, LocalPort, PolicyTables, plan_tables
from limpet.linux.owned import Owned
from limpet.policies.compiled import Compiled
from limpet.policies.policy import Direction, Key, Protocol

_log = structlog.get_logger("policy")

PROTOCOL_OF: dict[int, Protocol] = {6: "tcp", 17: "udp", 132: "sctp"}
"""By its number. Source: the IANA registry of protocol numbers."""
Change = tuple[PolicyTables, PolicyTables]
"""What there was, and what shall be."""


class PolicyPart(Part[PolicyTables, Change]):
    """Runs on the event loop's thread."""

    name = "policy"
    nftables = True
    rests = 3

    def __init__(
        self,
        loop: Loop,
        ports: Callable[[], Iterable[LocalPort]],
        compile_for: Callable[[Sequence[LocalPort]], Compiled],
    ) -> None:
        """`ports`: of the pods that this node has now. Raises: LimpetError."""
        self.compiled = Compiled()
        """Compiled in the last round."""
        self._loop = loop
        self._ports = ports
        self._compile = compile_for
        self._kernel = PolicyKernel()
        self._have: PolicyTables | None = None
        """As read, or as changed since; None: nobody knows."""
        self._left: PolicyTables | None = None
        """As they were when last they were as planned; None: that was before this agent."""
        self._unjudged = False
        """Connections may go on that began while the tables were damaged."""
        self._pods: dict[Address, set[Key]] = {}
        """Pods of this node, by address, which several may have."""
        self._coming: LocalPort | None = None
        self._planned = Planned()

    @staticmethod
    def owned(run_dir: Path) -> Owned:
        names = (NFT_POLICY_TABLE, NFT_POLICY_SPARE_TABLE)
        return Owned(nft_tables=names, nft_bridge_tables=names)

    def close(self) -> None:
        """What is in the kernel stays."""
        self._kernel.close()

    def dropped_packets(self) -> int:
        return self._kernel.dropped_packets()

    def own_addresses(self) -> frozenset[Address]:
        """Addresses of the node itself. Raises: KernelError."""
        return self._kernel.own_addresses()

    def cover(self, port: LocalPort) -> None:
        """What holds for a pod is in force when this returns, before its first packet.

        Raises: KernelError; then the pod must not get its interface.
        """
        self._coming = port
        try:
            self._loop.run(f"pod {port.key} is new", self)
        finally:
            self._coming = None
        if failures := self._loop.account(self).failures:
            raise KernelError(
                "apply", f"network policies of pod {port.key}", errno.EINVAL, failures[0]
            )

    def wake(self, why: str) -> None:
        """Policies, labels or pods are others than before."""
        self._loop.wake(self, why)

    # A round

    def plan(self) -> PolicyTables:
        ports = [*self._ports(), *([self._coming] if self._coming is not None else [])]
        self.compiled = self._compile(ports)
        self._pods = {}
        for port in ports:
            for address in port.addresses:
                self._pods.setdefault(address, set()).add(port.key)
        return plan_tables(self.compiled, ports, self._planned)

    def state(self, want: PolicyTables) -> PolicyTables:
        if self._have is None:
            self._have = self._kernel.read()
        return self._have

    def diff(self, want: PolicyTables, have: PolicyTables) -> list[Change]:
        self._unjudged = self._unjudged or (have != want and self._was_damaged(have, want))
        if have == want and not self._unjudged and self._kernel.holds(want):
            self._left = want
            return []
        return [(have, want)]

    def apply(self, changes: Sequence[Change]) -> list[str]:
        for before, after in changes:
            self._have = None
            try:
                if before != after or not self._kernel.holds(after):
                    self._kernel.change(before, after)
                if self._unjudged:
                    self._judge_again()
                    self._unjudged = False
            except KernelError as error:
                return [str(error)]
            self._have = self._left = after
        return []

    def _was_damaged(self, have: PolicyTables, want: PolicyTables) -> bool:
        """Another program had a hand in them, or what every packet meets was not there when this
        agent began."""
        if self._left is not None:
            return have != self._left
        return (have.inet.met_by_all, have.bridge.met_by_all) != (
            want.inet.met_by_all,
            want.bridge.met_by_all,
        )

    def _judge_again(self) -> None:
        """What got through meanwhile goes on only if it may. Raises: KernelError."""
        isolated = {pod for pod, _ in self.compiled.sides}
        addresses = [each for each, pods in self._pods.items() if not pods.isdisjoint(isolated)]
        if not addresses:
            return
        own = self._kernel.own_addresses()

        def is_denied(source: Address, target: Address, protocol: int, port: int) -> bool:
            ends: tuple[tuple[Direction, Address, Address], ...] = (
                ("egress", source, target),
                ("ingress", target, source),
            )
            return any(
                self.compiled.allows(pod, way, peer, PROTOCOL_OF.get(protocol), port) == frozenset()
                for way, mine, peer in ends
                if peer not in own and source != target
                for pod in self._pods.get(mine, ())
            )

        if forgotten := self._kernel.forget_denied(addresses, is_denied):
            _log.warning("connections that no policy allows were ended", count=forgotten)

    def removes(self, change: Change) -> bool:
        return change[1] == NOTHING

    def resync(self) -> None:
        self._have = None

    def suspect_nftables(self) -> None:
        self._have = None
