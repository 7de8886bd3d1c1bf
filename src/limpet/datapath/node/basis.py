"""What an agent plans its node by beside the pods, kept in a file while the machine runs.

Networks without pods, hostPorts that were, and what the cluster told are in the agent's memory
alone: who judges the kernel while no agent answers would else take a right node for a wrong one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from limpet.base.addresses import Address, Prefix
from limpet.base.decoding import decode_json
from limpet.base.disk import read_regular
from limpet.base.node_state import NodeState, RoutedNetworks
from limpet.base.records.version import VERSION, check_version
from limpet.datapath.node.pod.attachment import BridgeSpec

BASIS_FILE = "plan.json"
"""In the agent's run folder, which is gone with a reboot; replaced as a whole, not durably."""
_log = structlog.get_logger("round")
_encoder = msgspec.json.Encoder(enc_hook=str, order="deterministic")


@dataclass(frozen=True, slots=True)
class PlanBasis:
    """Arguments of `plan_node` that are no pods and are not read from the kernel."""

    state: NodeState = NodeState()
    bridges: tuple[BridgeSpec, ...] = ()
    """What each network asked for last; it may have no pod now."""
    host_ports_expected: bool = False
    """Some pod has had a hostPort."""
    names_at: tuple[Address, ...] = ()
    """Where pods ask the node for names."""


class BasisFile:
    """Written when something is new. One that cannot be written is left out of date: nothing that
    pods need depends on it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: PlanBasis | None = None

    def keep(self, basis: PlanBasis) -> None:
        if basis == self._kept:
            return
        begun = self._path.with_name(f"{self._path.name}.new")
        try:
            begun.unlink(missing_ok=True)
            begun.touch(mode=0o600, exist_ok=False)
            begun.write_bytes(encode_basis(basis))
            begun.replace(self._path)
        except OSError as error:
            _log.warning("what the plan goes by could not be kept", error=str(error))
            return
        self._kept = basis


def read_basis(path: Path) -> PlanBasis | None:
    """None: no agent has kept it since the last boot, or it cannot be read."""
    try:
        return decode_basis(read_regular(path))
    except (OSError, ValueError):
        return None


def encode_basis(basis: PlanBasis) -> bytes:
    return _encoder.encode({"version": VERSION, "basis": basis}) + b"\n"


def decode_basis(content: bytes) -> PlanBasis:
    """Raises: NewerFormatError; ValueError for nonsense."""
    check_version(content)
    found = decode_json(content, _Kept).basis
    state, behind = found.state, found.state.behind
    return PlanBasis(
        NodeState(
            _prefixes(state.segments),
            _prefixes(state.cluster_cidrs),
            RoutedNetworks(*map(_prefixes, (behind.peers, behind.here, behind.barriers))),
            in_cluster=state.in_cluster,
            underlay_mtu_bytes=state.underlay_mtu_bytes,
            overlay_links=frozenset(state.overlay_links),
            own_ports=frozenset(state.own_ports),
        ),
        tuple(
            BridgeSpec(
                each.ifname,
                tuple(map(ipaddress.ip_interface, each.gateways)),
                _prefixes(each.masquerade),
                each.promisc,
            )
            for each in found.bridges
        ),
        found.host_ports_expected,
        tuple(map(ipaddress.ip_address, found.names_at)),
    )


def _prefixes(texts: Iterable[str]) -> tuple[Prefix, ...]:
    return tuple(map(ipaddress.ip_network, texts))


class _Behind(msgspec.Struct):
    peers: list[str]
    here: list[str]
    barriers: list[str]


class _State(msgspec.Struct):
    segments: list[str]
    cluster_cidrs: list[str]
    behind: _Behind
    in_cluster: bool
    underlay_mtu_bytes: int | None
    overlay_links: list[str]
    own_ports: list[tuple[str, int, int]]


class _Bridge(msgspec.Struct):
    ifname: str
    gateways: list[str]
    masquerade: list[str]
    promisc: bool


class _Basis(msgspec.Struct):
    state: _State
    bridges: list[_Bridge]
    host_ports_expected: bool
    names_at: list[str]


class _Kept(msgspec.Struct):
    basis: _Basis
