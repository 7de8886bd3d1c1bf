"""The part of the loop that holds this node's pods to their network policies."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from limpet.base.addresses import Address
from limpet.base.errors import KernelError
from limpet.base.ownership import NFT_POLICY_TABLE
from limpet.datapath.loop import Loop
from limpet.datapath.part import Part
from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.ruleset import NOTHING, LocalPort, Planned, PolicyTables, plan_tables
from limpet.linux.owned import Owned
from limpet.policies.compiled import Compiled

Change = tuple[PolicyTables, PolicyTables]
"""What there was, and what shall be."""


class PolicyPart(Part[PolicyTables, Change]):
    """Runs on the event loop's thread."""

    name = "policy"
    nftables = True

    def __init__(
        self,
        loop: Loop,
        ports: Callable[[], Iterable[LocalPort]],
        compile_for: Callable[[Sequence[LocalPort]], Compiled],
    ) -> None:
        """`ports`: of the pods that this node has now. Raises: LimpetError."""
        self.compiled = Compiled()
        """Of the last round."""
        self._loop = loop
        self._ports = ports
        self._compile = compile_for
        self._kernel = PolicyKernel()
        self._have: PolicyTables | None = None
        """As read, or as changed since; None: nobody knows."""
        self._coming: LocalPort | None = None
        self._planned = Planned()

    @staticmethod
    def owned(run_dir: Path) -> Owned:
        return Owned(nft_tables=(NFT_POLICY_TABLE,), nft_bridge_tables=(NFT_POLICY_TABLE,))

    def close(self) -> None:
        """What is in the kernel stays."""
        self._kernel.close()

    def dropped_packets(self) -> int:
        return self._kernel.dropped_packets()

    def own_addresses(self) -> frozenset[Address]:
        """Of the node itself. Raises: KernelError."""
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
        return plan_tables(self.compiled, ports, self._planned)

    def state(self, want: PolicyTables) -> PolicyTables:
        if self._have is None:
            self._have = self._kernel.read()
        return self._have

    def diff(self, want: PolicyTables, have: PolicyTables) -> list[Change]:
        return [(have, want)] if have != want else []

    def apply(self, changes: Sequence[Change]) -> list[str]:
        for before, after in changes:
            self._have = None
            try:
                self._kernel.change(before, after)
            except KernelError as error:
                return [str(error)]
            self._have = after
        return []

    def removes(self, change: Change) -> bool:
        return change[1] == NOTHING

    def resync(self) -> None:
        self._have = None

    def suspect_nftables(self) -> None:
        self._have = None
