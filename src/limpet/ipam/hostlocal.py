"""host-local's folder layout: names and contents of its files <-> values.

    <ip>                     a reservation; `<container id>\\r\\n<ifname>`, older: the id alone
    <ip>_<namespace>_<pod>   a binding; JSON of ours, or empty from a patched host-local
    <ip>-<namespace>-<pod>   the same, as that patch's documentation spells it
    <ip>_sha256-<digest>     a binding of ours whose plain name is no file name
    last_reserved_ip.<n>     the address given last out of range set n
    lock                     flock of whoever changes the folder

Source: containernetworking/plugins, host-local, backend/disk/backend.go; openyurt,
docs/tutorial/0002-ipam-keep-pod-ip.patch.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from typing import Annotated

import msgspec
from msgspec import Meta

from limpet.base.addresses import Address
from limpet.base.decoding import convert
from limpet.ipam.leases import Binding, Entry, Holder, PodKey

LOCK = "lock"
JOURNAL = "limpet.journal"
NEW_JOURNAL = "limpet.journal.new"
DAMAGED_JOURNAL = "limpet.journal.damaged-"
UNKNOWN_HOLDER = Holder("", "")
"""Holder of a reservation that does not say who holds it. No container has an empty id."""

_MARK = "last_reserved_ip."
_NAME_LIMIT_BYTES = 255
_ADDRESS_FILE = re.compile(r"([0-9a-f.:]+)(?:([_-])(.*))?", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")
_NUMBERED = re.compile(rf"({re.escape(_MARK)}|{re.escape(DAMAGED_JOURNAL)})(0|[1-9][0-9]{{0,8}})")
_HASHED = re.compile(r"sha256-([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ReservationName:
    address: Address


@dataclass(frozen=True, slots=True)
class BindingName:
    """`joined`: `pod` is `<namespace>-<pod>`. `digest`: only the content says which pod it is."""

    address: Address
    namespace: str = ""
    pod: str = ""
    joined: bool = False
    digest: str = ""


@dataclass(frozen=True, slots=True)
class MarkName:
    index: int


@dataclass(frozen=True, slots=True)
class OwnName:
    """The lock, the journal, or the copy with this number of a damaged one."""

    copy: int = 0


Name = ReservationName | BindingName | MarkName | OwnName


def parse_name(name: str) -> Name | None:
    """What a file of the folder is by its name; None: nothing of this layout."""
    if name in (LOCK, JOURNAL, NEW_JOURNAL):
        return OwnName()
    if numbered := _NUMBERED.fullmatch(name):
        number = int(numbered[2])
        return MarkName(number) if numbered[1] == _MARK else OwnName(copy=number)
    match = _ADDRESS_FILE.fullmatch(name)
    address = parse_address(match[1]) if match else None
    if match is None or address is None:
        return None
    spelling, rest = match[2], match[3]
    if spelling is None:
        return ReservationName(address)
    if spelling == "-":
        return BindingName(address, pod=rest, joined=True) if rest else None
    if hashed := _HASHED.fullmatch(rest):
        return BindingName(address, digest=hashed[1])
    namespace, separator, pod = rest.partition("_")
    return BindingName(address, namespace, pod) if separator and namespace + pod else None


def parse_address(text: str) -> Address | None:
    """The address whose only spelling in this layout is `text`, or None."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return address if str(address) == text else None


def binding_name(address: Address, binding: Binding) -> str:
    """Never longer than a file name may be, and always a single safe one."""
    key = binding.key
    if binding.joined:
        return f"{address}-{key.pod}"
    name = f"{address}_{key.namespace}_{key.pod}"
    plain = _PLAIN.fullmatch(key.namespace + key.pod) and "_" not in key.namespace
    if plain and len(name) <= _NAME_LIMIT_BYTES:
        return name
    return f"{address}_sha256-{_digest(key.namespace, key.pod)}"


def mark_name(index: int) -> str:
    return f"{_MARK}{index}"


def encode_files(network: str, address: Address, entry: Entry) -> dict[str, bytes]:
    """The files that say what `entry` says, and no others about `address`: name -> content."""
    files = {}
    if entry.holder is not None:
        files[str(address)] = encode_holder(entry.holder)
    if entry.binding is not None:
        name = binding_name(address, entry.binding)
        files[name] = encode_binding(network, address, entry.binding)
    return files


def encode_holder(holder: Holder) -> bytes:
    lines = (holder.container_id, holder.ifname) if holder.ifname else (holder.container_id,)
    return "\r\n".join(lines).encode(errors="surrogatepass")


def parse_holder(content: bytes) -> Holder | None:
    """Who holds the address; an empty ifname in the older form. None: the content doesn't say."""
    try:
        container_id, _, ifname = content.decode(errors="surrogatepass").strip().partition("\n")
    except UnicodeDecodeError:
        return None
    container_id = container_id.strip()
    if not container_id or not container_id.isprintable() or not ifname.isprintable():
        return None
    return Holder(container_id, ifname)


class _Content(msgspec.Struct):
    """What a binding's file says: the full key."""

    network: str
    namespace: str
    pod: str
    ifname: str
    family: int
    order: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    container_id: str


def encode_binding(network: str, address: Address, binding: Binding) -> bytes:
    """Only ASCII, one line: names may have lone surrogates, which msgspec does not encode."""
    key, version = binding.key, address.version
    content = _Content(
        network, key.namespace, key.pod, key.ifname, version, binding.order, binding.container_id
    )
    return json.dumps(msgspec.structs.asdict(content)).encode() + b"\n"


def parse_binding(name: BindingName, content: bytes, network: str) -> tuple[Binding | None, str]:
    """The binding, and what is wrong with its content (empty: nothing).

    The name wins: a patched host-local that gives an address to another pod renames the file and
    leaves the content. A content that doesn't fit counts as empty. None: nothing says which pod.
    """
    by_name = Binding(PodKey(name.namespace, name.pod, ""), order=0, joined=name.joined)
    bare = None if name.digest else by_name
    if not content.strip():
        return bare, "" if bare else "is empty, and its name does not say which pod it is kept for"
    try:
        found = convert(json.loads(content), _Content)
    except (ValueError, RecursionError):
        return bare, "its content is damaged"
    key = PodKey(found.namespace, found.pod, found.ifname)
    if name.digest:
        agrees = _digest(key.namespace, key.pod) == name.digest
    else:
        agrees = (key.namespace, key.pod) == (name.namespace, name.pod)
    if not agrees or found.family != name.address.version:
        return bare, "its content is about another pod or family than its name"
    binding = Binding(key, found.order, found.container_id, name.joined)
    if found.network != network:
        return binding, f"was made for network {found.network!r}"
    return binding, ""


def _digest(namespace: str, pod: str) -> str:
    return sha256(f"{namespace}\0{pod}".encode(errors="surrogatepass")).hexdigest()
