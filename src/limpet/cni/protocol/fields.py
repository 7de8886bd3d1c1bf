"""Reading a decoded JSON object key by key, with errors that name the field and its value.

Keys are matched as Go's encoding/json does for the reference plugins: by the exact name, else
ignoring case (containerd sends `IngressRate`, podman `hostPort`); null counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import msgspec

from limpet.base.addresses import Address, Prefix
from limpet.base.bounds.tenants import CNI_LIST, CNI_SHOWN
from limpet.base.errors import CniCode, CniError
from limpet.base.text.escaping import escaped

Keys = Mapping[str, str]
"""Lower case name to name, as `keys()` makes it."""

_MAC = re.compile(r"[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}")


def keys(*names: str) -> Keys:
    return {name.lower(): name for name in names}


def show(value: object) -> str:
    """JSON text of `value` for an error message, cut to a readable length; never raises."""
    try:
        text = msgspec.json.encode(value).decode()
    except (RecursionError, TypeError, ValueError):  # too deep; a lone surrogate
        text = ascii(value) if isinstance(value, str) else f"<{type(value).__name__}>"
    return escaped(text if len(text) <= CNI_SHOWN.most else text[: CNI_SHOWN.most] + "…")


def invalid(path: str, value: object, problem: str, hint: str = "") -> CniError:
    """Error 7 for a field of the network configuration."""
    return CniError(CniCode.INVALID_NETWORK_CONFIG, f"{path}: {show(value)} {problem}", hint)


class Fields:
    """One JSON object at `path`. Readers return None (or nothing) for an absent or null key.

    Raises: CniError 7 from every reader where the type or the value is wrong.
    """

    __slots__ = ("path", "unknown", "values")

    def __init__(self, value: object, path: str, known: Keys) -> None:
        if not isinstance(value, dict):
            raise invalid(path or "network configuration", value, "is not an object")
        self.path = path
        self.values: dict[str, Any] = {}
        self.unknown: list[str] = []
        for key, item in value.items():
            name = known.get(key.lower())
            if name is None:
                self.unknown.append(self.at(key))
            elif item is not None and (key == name or name not in value):
                self.values[name] = item

    def at(self, key: str) -> str:
        """Path of `key`, as error messages show it."""
        return f"{self.path}.{key}" if self.path else key

    def invalid(self, key: str, problem: str, hint: str = "") -> CniError:
        return invalid(self.at(key), self.values.get(key), problem, hint)

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        return None if value is None else to_text(value, self.at(key))

    def flag(self, key: str) -> bool:
        """False when absent."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.invalid(key, "is not true or false")
        return value

    def number(self, key: str, lowest: int, highest: int) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.invalid(key, "is not a whole number")
        if not lowest <= value <= highest:
            raise self.invalid(key, f"is not within {lowest} to {highest}")
        return value

    def items(self, key: str) -> list[tuple[str, object]]:
        """The elements of a list, each with its path."""
        value = self.values.get(key)
        if value is None:
            return []
        return list_items(value, self.at(key))

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(to_text(value, path) for path, value in self.items(key))

    def object(self, key: str, known: Keys) -> Fields:
        """The object under `key`; an empty one when absent. Its unknown keys are not noted here."""
        return Fields(self.values.get(key, {}), self.at(key), known)

    def objects(self, key: str, known: Keys) -> Iterator[Fields]:
        for path, value in self.items(key):
            yield Fields(value, path, known)

    def address(self, key: str) -> Address | None:
        value = self.values.get(key)
        return None if value is None or value == "" else to_address(value, self.at(key))

    def prefix(self, key: str, *, mask: bool) -> Prefix | None:
        """`mask`: host bits are cleared, else they are an error."""
        value = self.values.get(key)
        return None if value is None else to_prefix(value, self.at(key), mask=mask)

    def absolute_path(self, key: str) -> str | None:
        """None when absent or empty."""
        value = self.text(key)
        if value and not value.startswith("/"):
            raise self.invalid(key, "is not an absolute path")
        return value or None


def list_items(value: object, path: str) -> list[tuple[str, object]]:
    if not isinstance(value, list):
        raise invalid(path, value, "is not a list")
    if len(value) > CNI_LIST.most:
        raise invalid(path, len(value), f"{CNI_LIST.unit} are more than {CNI_LIST.most:,}")
    return [(f"{path}[{index}]", item) for index, item in enumerate(value)]


def to_text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise invalid(path, value, "is not a string")
    if "\0" in value:
        raise invalid(path, value, "has a NUL character")
    return value


def to_address(value: object, path: str) -> Address:
    """An address as Go's net.ParseIP takes it: no zone; `::ffff:a.b.c.d` is the IPv4 address."""
    text = to_text(value, path)
    try:
        address = ip_address(text)
    except ValueError:
        raise invalid(path, value, "is not an IPv4 or IPv6 address") from None
    if isinstance(address, IPv4Address):
        return address
    if address.scope_id is not None:
        raise invalid(path, value, "is an address with a zone")
    return address.ipv4_mapped or address


def to_prefix(value: object, path: str, *, mask: bool) -> Prefix:
    """A prefix in `address/length` form."""
    text = to_text(value, path)
    host, slash, length = text.partition("/")
    try:
        # ip_network() also takes netmasks, zones and bare addresses; the reference does not.
        if not slash or not length.isdecimal() or "%" in text:
            raise ValueError(text)
        address, prefix = ip_address(host), ip_network(text, strict=False)
    except ValueError:
        raise invalid(path, value, "is not a prefix", "expected address/length") from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise invalid(path, value, "is an IPv4 prefix in IPv6 form", "write it as IPv4")
    if not mask and address != prefix.network_address:
        raise invalid(path, value, "has host bits set", f"the network is {prefix}")
    return prefix


def to_mac(value: object, path: str) -> str:
    """A unicast MAC address, lower case, colon separated; bytes may be separated by : or -."""
    if isinstance(value, str) and _MAC.fullmatch(value):
        raw = bytes.fromhex(value.replace("-", ":").replace(":", ""))
        if not raw[0] & 1 and any(raw):
            return raw.hex(":")
    raise invalid(path, value, "is not a unicast MAC address")
