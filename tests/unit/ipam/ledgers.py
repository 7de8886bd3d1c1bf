"""What the tests of the ledger share."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path

from limpet.base.addresses import Address
from limpet.ipam.leases import Holder, PodKey, Range, RangeSet, Reservation
from limpet.ipam.ledger import Ledger
from limpet.ipam.store import Tuning

SMALL = Tuning(journal_bytes=16 * 1024, settle_s=0.001, retry_s=0.05, lock_wait_s=0.1)


def ranges(*subnets: str) -> RangeSet:
    """One range set of whole subnets, the gateway at their first usable address."""
    prefixes = [ip_network(subnet) for subnet in subnets]
    return tuple(Range(p, p[1], p[-2] if p.version == 4 else p[-1], p[1]) for p in prefixes)


V4 = ranges("10.0.0.0/29")
"""10.0.0.2 to 10.0.0.6."""
V6 = ranges("fd00::/125")
"""fd00::2 to fd00::7."""


def open_ledger(folder: Path, *, network: str = "net", tuning: Tuning = SMALL) -> Ledger:
    return Ledger.open(folder, network, tuning=tuning)


def sandbox(name: str, ifname: str = "eth0") -> Holder:
    return Holder(name, ifname)


def pod(name: str, namespace: str = "default", ifname: str = "eth0") -> PodKey:
    return PodKey(namespace, name, ifname)


def texts(reservation: Reservation) -> list[str]:
    """The addresses that were given."""
    return [str(lease.address.ip) for lease in reservation.leases]


def ip(text: str) -> Address:
    return ip_address(text)


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)


def address_files(folder: Path) -> dict[str, bytes]:
    """The files about addresses, by name."""
    skipped = ("lock", "limpet.journal", "last_reserved_ip")
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.startswith(skipped)}
