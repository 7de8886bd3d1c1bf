"""What a tunnel asks of its backend: WireGuard or IPsec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError
from limpet.datapath.tunnel.diff import TunnelChange
from limpet.datapath.tunnel.program import Program
from limpet.datapath.tunnel.state import PeerReading, TunnelState


class TunnelBackendKernel(Protocol):
    """What makes the device and has its peers: WireGuard or IPsec."""

    @property
    def have(self) -> TunnelState:
        """What `observe` read and `apply` changed."""

    @property
    def given(self) -> Mapping[bytes, Endpoint]:
        """The endpoints that were planned when they were last set, by public key."""

    @property
    def has_kernels(self) -> bool:
        """There is no program to start: the kernel does it. Raises: KernelError."""

    @property
    def program(self) -> Program: ...

    @property
    def runs_program(self) -> bool:
        """The device that there is was made by it."""

    @property
    def made_by(self) -> str: ...

    @property
    def problem(self) -> str:
        """What goes wrong beside rounds; empty: nothing does."""

    @property
    def hangs(self) -> bool:
        """Its program gives no answer, and has to be started anew."""

    @property
    def is_in_doubt(self) -> bool:
        """Its program gave no answer, and is to be asked again now."""

    @property
    def without_s(self) -> Mapping[bytes, float]:
        """Peers that nothing gets to although there is a way, and since when (monotonic)."""

    def observe(self, want: TunnelState) -> TunnelState:
        """What is, read anew. Raises: KernelError."""

    def readings(self) -> Mapping[bytes, PeerReading]:
        """Raises: KernelError."""

    def apply(self, changes: Iterable[TunnelChange]) -> list[KernelError]:
        """Tries every change; returns the failures."""

    def close(self) -> None:
        """The device stays."""
