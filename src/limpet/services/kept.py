"""Services and EndpointSlices as they are kept on a node's disk: a line of JSON each, pure.

The same object is always the same line, so who reads the file again looks only at lines that are
new. The last line counts the others: a file without it was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from limpet.base.decoding import decode_json
from limpet.services.catalog import Catalog, Item
from limpet.services.values import EndpointSlice, Service, ServiceName

KEPT_FILE = "services.jsonl"
"""In the folder of what the node keeps of its cluster; replaced as a whole, durably."""
_SERVICE, _SLICE, _END = b'["service",', b'["slice",', b'["end",'
_NO_SERVICE, _NO_SLICE = b'["no service",', b'["no slice",'


def encode_items(items: Iterable[Item]) -> bytes:
    """The whole file."""
    return join_lines(encode_lines(items))


def encode_lines(items: Iterable[Item]) -> list[bytes]:
    """A line each, without its end."""
    return list(map(encode_item, items))


def join_lines(lines: list[bytes]) -> bytes:
    """The whole file."""
    return b"\n".join([*lines, _END + str(len(lines)).encode() + b"]", b""])


def encode_item(item: Item) -> bytes:
    """Its line."""
    return (_SERVICE if isinstance(item, Service) else _SLICE) + msgspec.json.encode(item) + b"]"


def encode_gone(item: type[Item], key: ServiceName) -> bytes:
    """A line that is in no whole file: what is there no more."""
    kind = _NO_SERVICE if item is Service else _NO_SLICE
    return kind + msgspec.json.encode(key) + b"]"


def decode_change(line: bytes) -> Callable[[Catalog], object]:
    """What a line does to a catalog. Raises: ValueError for nonsense."""
    for kind, forget in ((_NO_SERVICE, Catalog.remove_service), (_NO_SLICE, Catalog.remove_slice)):
        if line.startswith(kind) and line.endswith(b"]"):
            namespace, name = decode_json(line[len(kind) : -1], ServiceName)
            return lambda catalog: forget(catalog, namespace, name)
    item = decode_item(line)
    return lambda catalog: catalog.put(item)


def decode_items(content: bytes) -> list[Item]:
    """Of a whole file. Raises: ValueError for nonsense, and when it was cut."""
    return [decode_item(line) for line in split_items(content)]


def split_items(content: bytes) -> list[bytes]:
    """Lines of a whole file, not decoded. Raises: ValueError when it was cut."""
    lines = content.split(b"\n")
    if len(lines) < 2 or lines.pop() or lines.pop() != _END + str(len(lines)).encode() + b"]":
        raise ValueError("it has no end")
    return lines


def decode_item(line: bytes) -> Item:
    """Raises: ValueError for nonsense."""
    if line.startswith(_SERVICE) and line.endswith(b"]"):
        return decode_json(line[len(_SERVICE) : -1], Service)
    if line.startswith(_SLICE) and line.endswith(b"]"):
        return decode_json(line[len(_SLICE) : -1], EndpointSlice)
    raise ValueError(f"no Service and no EndpointSlice: {line[:40]!r}")
