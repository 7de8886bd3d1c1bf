"""The bridges of pods: what each network has asked for, and what there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from limpet.base.addresses import Address, Prefix
from limpet.base.errors import CniCode, CniError
from limpet.base.node_state import NodeState
from limpet.datapath.node.basis import BASIS_FILE, BasisFile, PlanBasis
from limpet.datapath.node.pod.attachment import Attachment, BridgeSpec


class Bridges:
    """A prefix is on one bridge: the node has one route to it."""

    def __init__(self, names_at: tuple[Address, ...] = (), run_dir: Path | None = None) -> None:
        """`names_at`: where pods ask the node for names: no hostPort is there. `run_dir`: where is
        kept what the plan goes by; None: nowhere."""
        self._names_at = names_at
        self._file = None if run_dir is None else BasisFile(run_dir / BASIS_FILE)
        self.specs: dict[str, BridgeSpec] = {}
        """What each network asked for last; it may have no pod now."""
        self.found: dict[str, tuple[int, str]] = {}
        """ifindex and MAC by name, as of the last round."""
        self.unusable: Mapping[str, str] = {}
        """Names of wanted bridges that other links have, with the reason."""
        self.host_ports_expected = False
        """Some pod has had a hostPort."""

    def ask(self, network: str, spec: BridgeSpec, pods: Iterable[Attachment]) -> bool:
        """The network wants that bridge; True: it did not before.

        A prefix leaves another bridge when the last pod there is gone. Raises: CniError (7) until
        then.
        """
        if self.specs.get(network) == spec:
            return False
        for pod in pods:
            if pod.bridge is not None and (shared := _shared(pod.bridge, spec)):
                raise CniError(
                    CniCode.INVALID_NETWORK_CONFIG,
                    f"network {network}: {shared} cannot be on bridge {spec.ifname}, since pods of "
                    f"network {pod.network} have it on bridge {pod.bridge.ifname}",
                    f"delete those pods first (one is container {pod.holder.container_id}), "
                    "or give the network that bridge, or another subnet",
                )
        self.specs = {name: old for name, old in self.specs.items() if not _shared(old, spec)}
        self.specs[network] = spec
        return True

    def basis(self, state: NodeState) -> PlanBasis:
        """What a plan goes by from now on, where the node is this; it is kept in the file too."""
        basis = PlanBasis(
            state, tuple(self.specs.values()), self.host_ports_expected, self._names_at
        )
        if self._file is not None:
            self._file.keep(basis)
        return basis

    def look(self, found: Mapping[str, tuple[int, str]]) -> bool:
        """These are there now; True: some are new, or have another MAC. One that somebody else made
        and gave none has the least of its ports'."""
        before, self.found = self.found, dict(found)
        return before != self.found

    def ifindexes(self) -> set[int]:
        return {ifindex for ifindex, _mac in self.found.values()}


def _shared(one: BridgeSpec, other: BridgeSpec) -> Prefix | None:
    """A prefix that two different bridges would hold the gateway of."""
    if one.ifname == other.ifname:
        return None
    prefixes = {gateway.network for gateway in one.gateways}
    return next((each.network for each in other.gateways if each.network in prefixes), None)
