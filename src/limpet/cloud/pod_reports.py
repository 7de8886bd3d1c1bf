"""Pods and the addresses that they hold here, as the controller is told; and what it gives back."""

from __future__ import annotations

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from limpet.base.addresses import Address
from limpet.base.bounds import members
from limpet.base.decoding import decode_json
from limpet.base.disk import read_regular
from limpet.base.errors import AddressError
from limpet.cluster.api import InterfaceAddresses, PodReport
from limpet.cluster.reported_pods import PodKey as ReportedKey
from limpet.cluster.reported_pods import key_problem, record_bytes
from limpet.cni.ledgers import Ledgers
from limpet.cni.protocol.conf import NAME
from limpet.ipam.leases import Holder, PodKey, Range, number_of
from limpet.ipam.ledger import Ledger

_log = structlog.get_logger("reports")

_REPORT_BYTES = members.REPORT_BODY.most * 3 // 4
"""Size of the pods in one report; what is around them has room beside."""
_RECORD_BYTES = members.REPORTED_BYTES.most * 3 // 4
"""Size of all pods that are told: amid several reports the controller may have pods as they are now
beside others as they were."""
_LONGEST_JUMP = 1 << 20
"""Bound of the random jump of the sequence at each start."""
_VERSION = 1
"""Format of the file on the disk."""
_KEPT = "kept-from-the-machine-before"
"""Stands for the container that held an address elsewhere."""

_ANYWHERE = {
    version: (Range(everything, everything[1], everything[-2], everything[0]),)
    for version, everything in ((4, ip_network("0.0.0.0/0")), (6, ip_network("::/0")))
}
"""Where a machine's addresses may lie, whatever segments it will be granted."""


class _Said(NamedTuple):
    """What is said of one interface of a pod."""

    addresses: tuple[str, ...]
    kept: bool = False


_State = Mapping[ReportedKey, _Said]
_GONE = _Said(())


class _Acknowledged(msgspec.Struct, frozen=True):
    """What is kept on the disk: a restart is no reason to tell everything again."""

    version: int
    sequence: int
    digest: bytes


class _Version(msgspec.Struct, frozen=True):
    version: int


@dataclass(frozen=True, slots=True)
class _Sent:
    sequence: int
    state: _State
    """What the controller has when it has taken this."""


class PodReports:
    """Makes reports of what the ledgers say, whole or what changed. For one event loop."""

    def __init__(self, ledgers: Ledgers, path: Path) -> None:
        """`path`: where the last acknowledged report is remembered; it may be lost.

        A file of a later Limpet is left alone, and nothing is remembered.
        """
        self._ledgers = ledgers
        self._known, is_ours = _read(path)
        self._path = path if is_ours else None
        self._sequence = self._known.sequence if self._known is not None else 0
        # A report whose answer was lost is remembered nowhere here: its number must not come back
        # with something else in it, or a controller restored to it would be taken for up to date.
        self._sequence += secrets.randbelow(_LONGEST_JUMP)
        self._sent: list[_Sent] = []
        """What the controller took last, if known, and what it was sent last."""
        self._now: _State | None = None
        """None: something may have changed."""

    def changed(self) -> None:
        """An address was given, came free, or is kept for nobody any more."""
        self._now = None

    def report(self, base: int | None) -> PodReport | None:
        """What changed since the controller's report `base`; None: nothing did.

        All of it where `base` is None or a report of which nothing is known here any more; in
        parts where it is too much for one. What is too much for the controller is left out:
        absent pods first, those that were here last later.
        """
        now = self._present()
        had = self._had(base, now)
        if had == now:
            return None
        if had is None:
            base, had = None, {}
        part, after = _part(had, now)
        self._sequence = max(self._sequence, -1 if base is None else base) + 1
        self._sent.append(_Sent(self._sequence, after))
        del self._sent[1:-1]
        return PodReport(self._sequence, part, base)

    def acknowledged(self, sequence: int) -> None:
        """The controller has the report."""
        sent = next((each for each in self._sent if each.sequence == sequence), None)
        if sent is None:
            return
        self._sent = [sent]
        self._known = _Acknowledged(_VERSION, sequence, _digest(sent.state))
        if self._path is None:
            return
        with suppress(OSError):  # then everything is told again after a restart
            new = self._path.with_name(self._path.name + ".new")
            new.write_bytes(msgspec.json.encode(self._known))
            new.rename(self._path)

    def _present(self) -> _State:
        if self._now is None:
            self._now = _pods_of(self._ledgers)
        return self._now

    def _had(self, base: int | None, now: _State) -> _State | None:
        """What the controller has; None: not known."""
        if base is None:
            return None
        self._sequence = max(self._sequence, base)
        for sent in self._sent:
            if sent.sequence == base:
                return sent.state
        if self._known is not None and self._known == _Acknowledged(_VERSION, base, _digest(now)):
            self._sent = [_Sent(base, now)]
            return now
        return None


def keep_bindings(data_dir: Path, pods: Iterable[InterfaceAddresses]) -> None:
    """Keeps for the pods what they had on the machine that this one replaces, on the disk.

    An address that somebody holds here, or that is kept for another pod, is left alone; so is a
    pod that has an address of the family here. To be called while no agent has the folders.
    Raises: StorageError.
    """
    by_network: dict[str, list[InterfaceAddresses]] = defaultdict(list)
    for pod in pods:
        if NAME.fullmatch(pod.network):
            by_network[pod.network].append(pod)
        else:
            _log.warning("a pod's network has an impossible name", network=pod.network[:80])
    for network, held in by_network.items():
        ledger = Ledger.open(data_dir / network, network)
        try:
            _keep(ledger, held)
            ledger.durable().result()
        finally:
            ledger.close()


def _keep(ledger: Ledger, pods: Iterable[InterfaceAddresses]) -> None:
    """Reserves and releases an address for each pod, so that its binding stays.

    Those of pods that had ended come first: a full segment gives the oldest away first.
    """
    taken = ledger.holders().keys() | ledger.bindings().keys()
    known = {(each.key, at.version) for at, each in ledger.bindings().items()}
    for pod in sorted(pods, key=lambda pod: not pod.kept):
        key = PodKey(pod.namespace, pod.pod, pod.ifname)
        adopted = PodKey(pod.namespace, pod.pod, "")
        wanted = [
            address
            for address in _addresses(pod)
            if address not in taken
            and not {(key, address.version), (adopted, address.version)} & known
        ]
        if not wanted or not key.pod:
            continue
        holder = Holder(_KEPT, f"{key.namespace}/{key.pod}/{key.ifname}")
        range_sets = [_ANYWHERE[address.version] for address in wanted]
        try:
            ledger.reserve(holder, key, range_sets, requested=wanted, now_s=0.0)
        except AddressError as error:
            _log.warning("what a pod had cannot be kept for it", error=str(error))
            continue
        ledger.release(holder, now_s=0.0)
        taken |= set(wanted)


def _addresses(pod: InterfaceAddresses) -> list[Address]:
    found = []
    for text in pod.addresses:
        with suppress(ValueError):
            found.append(ip_address(text))
    return list(dict.fromkeys(found))


def _pods_of(ledgers: Ledgers) -> dict[ReportedKey, _Said]:
    """What every ledger says of pods with a name, as much as a controller takes."""
    found: dict[ReportedKey, list[Address]] = defaultdict(list)
    worth: dict[ReportedKey, tuple[bool, int]] = {}
    for ledger in ledgers:
        holders = ledger.holders()
        for address, binding in ledger.bindings().items():
            key = (ledger.network, binding.key.namespace, binding.key.pod, binding.key.ifname)
            if key_problem(key):
                continue
            found[key].append(address)
            worth[key] = max(worth.get(key, (False, 0)), (address in holders, binding.order))
    said: dict[ReportedKey, _Said] = {}
    left_bytes = _RECORD_BYTES
    for key in sorted(found, key=worth.__getitem__, reverse=True)[: members.REPORTED_PODS.most]:
        held = sorted(found[key], key=number_of)[: members.REPORTED_POD_ADDRESSES.most]
        is_there, _ = worth[key]
        each = _Said(tuple(map(str, held)), kept=not is_there)
        left_bytes -= record_bytes([InterfaceAddresses(*key, *each)])
        if left_bytes < 0:
            break
        said[key] = each
    return said


def _part(had: _State, now: _State) -> tuple[tuple[InterfaceAddresses, ...], _State]:
    """As many changes as fit one report, and what the controller has then.

    Who is gone comes first: in between the controller never has more than it takes.
    """
    changes = [(key, _GONE) for key in sorted(had.keys() - now.keys())]
    changes += [(key, now[key]) for key in sorted(now) if had.get(key) != now[key]]
    part: list[InterfaceAddresses] = []
    after = dict(had)
    size = 0
    for key, said in changes:
        pod = InterfaceAddresses(*key, *said)
        size += record_bytes([pod])
        if size > _REPORT_BYTES:
            break
        part.append(pod)
        if said.addresses:
            after[key] = said
        else:
            del after[key]
    return tuple(part), after


def _digest(state: _State) -> bytes:
    return hashlib.sha256(msgspec.json.encode(sorted(state.items()))).digest()


def _read(path: Path) -> tuple[_Acknowledged | None, bool]:
    """What is remembered, and whether the file may be written."""
    try:
        data = read_regular(path)
        version = decode_json(data, _Version).version
        if version > _VERSION:
            _log.warning(
                "which pods the controller knows is not remembered: they are told anew at each "
                "start (install the later Limpet again, or remove the file)",
                path=str(path),
                error=f"it has format {version}, this Limpet knows {_VERSION}",
            )
            return None, False
        return decode_json(data, _Acknowledged), True
    except (OSError, msgspec.MsgspecError):
        return None, True
