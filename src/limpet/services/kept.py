"""Services and EndpointSlices as they are kept on a node's disk: a line of JSON each, pure.

The same object is always the same line, so who reads the file again looks only at lines that are
new. The last line counts the others: a file without it was cut.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from limpet.base.decoding import decode_json
from limpet.services.values import EndpointSlice, Service

KEPT_FILE = "services.jsonl"
"""In the folder of what the node keeps of its cluster; replaced as a whole, durably."""
_SERVICE, _SLICE, _END = b'["service",', b'["slice",', b'["end",'

Item = Service | EndpointSlice


def encode_items(items: Iterable[Item]) -> bytes:
    """The whole file."""
    lines = [
        (_SERVICE if isinstance(each, Service) else _SLICE) + msgspec.json.encode(each) + b"]"
        for each in items
    ]
    return b"\n".join([*lines, _END + str(len(lines)).encode() + b"]", b""])


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
