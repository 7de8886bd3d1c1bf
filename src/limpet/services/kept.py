"""Services and EndpointSlices as they are kept on a node's disk: a line of JSON each, pure.

The same object is always the same line, so who reads the file again looks only at lines that are
new. The last line counts the others and has the version: a file without it was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import force_setattr

from limpet.base.decoding import decode_json
from limpet.base.records.version import VERSION, NewerFormatError, check_version
from limpet.base.text.shared import share
from limpet.services.catalog import Catalog, Item
from limpet.services.values import (
    NOT_EXPOSED,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Service,
    ServiceName,
    ServicePort,
)

AnyItem = TypeVar("AnyItem", Service, EndpointSlice)

KEPT_FILE = "services.jsonl"
"""In the folder of what the node keeps of its cluster; replaced as a whole, durably."""
JOURNAL_FILE = "services-changes.jsonl"
"""In the folder that is gone with a boot: what was heard since the other file was written, in
order, a line each."""
_SERVICE, _SLICE, _END = b'["service",', b'["slice",', b'{"end":'
_PART = b',"part":true'
"""In the last line of a file of which others were lost: for a Limpet that does not know it the file
is a damaged one."""
LOST = "others were lost with a damaged file"
"""What is wrong with such a file, and nothing else is."""
_WORDS: Mapping[type[msgspec.Struct], tuple[str, ...]] = {
    Service: ("namespace", "name", "type", "distribution"),
    ServicePort: ("name", "protocol"),
    EndpointSlice: ("namespace", "name", "service"),
    EndpointPort: ("name", "protocol"),
    Endpoint: ("node", "zone"),
}
"""Fields that say the same in many objects, or that others keep, too."""
_NO_SERVICE, _NO_SLICE = b'["no service",', b'["no slice",'
_GONE: tuple[tuple[bytes, type[Item]], ...] = ((_NO_SERVICE, Service), (_NO_SLICE, EndpointSlice))


def encode_items(items: Iterable[Item]) -> bytes:
    """The whole file."""
    found = list(items)
    return encode_lines(found) + encode_end(len(found))


def encode_lines(items: Iterable[Item]) -> bytes:
    """A line each, with its end."""
    return b"".join(encode_item(item) + b"\n" for item in items)


def encode_end(count: int, *, is_part: bool = False) -> bytes:
    """The last line of a file of so many items. `is_part`: there were others, which are lost."""
    return _end(count, is_part) + b"\n"


def encode_item(item: Item) -> bytes:
    """Its line."""
    return (_SERVICE if isinstance(item, Service) else _SLICE) + msgspec.json.encode(item) + b"]"


def encode_gone(item: type[Item], key: ServiceName) -> bytes:
    """A line that is in no whole file: what is there no more."""
    kind = _NO_SERVICE if item is Service else _NO_SLICE
    return kind + msgspec.json.encode(key) + b"]"


ItemKey = tuple[type[Item], ServiceName]
"""What a line is about."""


class KeptChange(NamedTuple):
    """An object is another, or there no more."""

    about: ItemKey
    item: Item | None

    def apply(self, catalog: Catalog) -> tuple[ServiceName, ...]:
        """Services that are others by this."""
        kind, name = self.about
        if self.item is not None:
            return catalog.put(self.item)
        remove = catalog.remove_service if kind is Service else catalog.remove_slice
        return remove(*name)


def decode_change(line: bytes) -> KeptChange:
    """Raises: ValueError for nonsense."""
    for mark, kind in _GONE:
        if line.startswith(mark) and line.endswith(b"]"):
            return KeptChange((kind, decode_json(line[len(mark) : -1], ServiceName)), None)
    item = decode_item(line)
    return KeptChange((type(item), item.key), item)


def read_items(content: bytes) -> tuple[list[Item], str]:
    """What can be read of a file that may be damaged, since each line stands for itself; and what
    is wrong with it, in words: nothing is. Raises: NewerFormatError."""
    damage = ""
    try:
        lines = split_items(content)
    except NewerFormatError:
        raise
    except ValueError as error:
        lines, damage = content.split(b"\n"), str(error)
    items = []
    for line in lines:
        try:
            items.append(decode_item(line))
        except ValueError as error:
            damage = damage or str(error)
    return items, damage or (LOST if says_part(content) else "")


def split_items(content: bytes) -> list[bytes]:
    """Lines of a whole file, not decoded. Raises: NewerFormatError; ValueError when it was cut."""
    lines = content.split(b"\n")
    if len(lines) < 2 or lines.pop() or not (end := lines.pop()).startswith(_END):
        raise ValueError("it has no end")
    check_version(end)
    if end not in (_end(len(lines), False), _end(len(lines), True)):
        raise ValueError("it has another end")
    return lines


def says_part(content: bytes) -> bool:
    """Whether the file says of itself that others were lost."""
    return content.endswith(_PART + b"}\n")


def _end(count: int, is_part: bool) -> bytes:
    return _END + b'%d,"version":%d%s}' % (count, VERSION, _PART if is_part else b"")


def decode_item(line: bytes) -> Item:
    """Raises: ValueError for nonsense."""
    if line.startswith(_SERVICE) and line.endswith(b"]"):
        service = decode_json(line[len(_SERVICE) : -1], Service)
        if service.exposure == NOT_EXPOSED:
            force_setattr(service, "exposure", NOT_EXPOSED)
        return _share_words(service, service.ports)
    if line.startswith(_SLICE) and line.endswith(b"]"):
        piece = decode_json(line[len(_SLICE) : -1], EndpointSlice)
        return _share_words(piece, (*piece.ports, *piece.endpoints))
    raise ValueError(f"no Service and no EndpointSlice: {line[:40]!r}")


def _share_words(item: AnyItem, parts: Iterable[msgspec.Struct]) -> AnyItem:
    """One text for words that come again, as in what was heard: those of 10,000 Services would take
    8 MB, and names of nodes more."""
    for part in (item, *parts):
        for field in _WORDS[type(part)]:
            if word := getattr(part, field):
                force_setattr(part, field, share(word))
    return item
