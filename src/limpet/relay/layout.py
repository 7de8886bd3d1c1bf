"""Messages as bytes: the fields of a class in their order, big-endian, with nothing between them.

A field's type says how it stands there: `port: Annotated[int, Field("H")]`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_type_hints

from limpet.base.addresses import Endpoint, in_16_bytes, of_16_bytes
from limpet.cluster.datagrams.peer_datagram import UID_BYTES, uid_bytes, uid_text

M = TypeVar("M")


class Field(NamedTuple):
    """A format of `struct`; what is packed of a value, and the value of what was unpacked."""

    code: str
    pack: Callable[[Any], Any] = lambda value: value
    parse: Callable[[Any], Any] = lambda packed: packed
    """Raises: ValueError."""


class Layout(Generic[M]):
    def __init__(self, message: type[M]) -> None:
        """`message`: a dataclass whose fields are all annotated with a `Field`."""
        hints = get_type_hints(message, include_extras=True)
        self.message = message
        self._fields: dict[str, Field] = {name: h.__metadata__[0] for name, h in hints.items()}
        self._struct = struct.Struct(">" + "".join(field.code for field in self._fields.values()))

    def encode(self, message: M) -> bytes:
        """Raises: ValueError, struct.error for what no parser would take."""
        return self._struct.pack(
            *(field.pack(getattr(message, name)) for name, field in self._fields.items())
        )

    def parse(self, body: bytes) -> M:
        """Raises: ValueError, struct.error."""
        packed = zip(self._fields.values(), self._struct.unpack(body), strict=True)
        return self.message(*(field.parse(value) for field, value in packed))


def _port(port: int) -> int:
    """Raises: ValueError."""
    if port == 0:
        raise ValueError("a port is missing")
    return port


def _pack_endpoint(endpoint: Endpoint) -> bytes:
    address, port = endpoint
    return in_16_bytes(address) + port.to_bytes(2)


def _parse_endpoint(packed: bytes) -> Endpoint:
    """Raises: ValueError."""
    return of_16_bytes(packed[:16]), _port(int.from_bytes(packed[16:]))


Uid = Annotated[str, Field(f"{UID_BYTES}s", uid_bytes, uid_text)]
Port = Annotated[int, Field("H", parse=_port)]
"""A UDP port, never 0."""
EndpointField = Annotated[Endpoint, Field("18s", _pack_endpoint, _parse_endpoint)]
"""An address of IPv6, that of IPv4 mapped (RFC 4291 section 2.5.5.2), and a port."""
