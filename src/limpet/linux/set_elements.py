"""Elements of maps and sets in one table of nftables, changed and read without libnftables."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple
from zlib import crc32

from limpet.base.errors import KernelError
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import set_codec
from limpet.linux.netlink.transactions import NftablesSocket

_AT_ONCE = 512
"""Messages of one transaction, with some hundred elements each."""
_KEYS_AT_ONCE = 1024
"""Keys of one transaction that may be refused as a whole."""


class SetPrint(NamedTuple):
    """What there is in a set, in whatever order."""

    elements: int
    total: int


Range = tuple[bytes, bytes | None]
"""Keys from the first to before the other; None: to the end."""
_NOTHING: Mapping[bytes, bytes] = {}
Frame = Mapping[str, tuple[bytes, ...]]
"""By name of the chain or set: what it is and has, in order, as the kernel holds it."""


class SetElements:
    """For the network namespace of the thread that makes it."""

    def __init__(
        self,
        table: str,
        *,
        family: int = set_codec.INET,
        netlink: NftablesSocket | None = None,
    ) -> None:
        """`family`: only `change_keys` knows another than inet. `netlink`: another's, who closes
        it. Raises: KernelError."""
        self._table = table
        self._family = family
        self._is_own = netlink is None
        self._netlink = netlink or NftablesSocket()

    def close(self) -> None:
        if self._is_own:
            self._netlink.close()

    def read(self, name: str, like: Mapping[bytes, bytes] = _NOTHING) -> dict[bytes, bytes]:
        """Elements of one map; empty when it is not there. Raises: KernelError.

        `like`: where the map is just like that, it shares its keys and values, and none are made.
        """
        messages = self._netlink.dump_found(set_codec.dump_elements(self._table, name))
        found = Counter(map(like.items().__contains__, _elements(messages)))
        alike = Counter({True: len(like)})
        return dict(like) if found == alike else dict(_elements(messages))

    def read_frame(self, table: str, sets: Iterable[str]) -> Frame:
        """What a table has beside the elements of its maps, by the name of the chain, or of those
        sets that are read too; empty when it is not there. Raises: KernelError.

        libnftables reads all elements to list a table without them.
        """
        found: dict[str, list[bytes]] = {}
        for message in self._netlink.dump_found(set_codec.dump_chains(table)):
            if (chain := set_codec.parse_chain(message, table)) is not None:
                found[chain[0]] = [chain[1]]
        for message in self._netlink.dump_found(set_codec.dump_rules(table)):
            if (rule := set_codec.parse_rule(message, table)) is not None:
                found.setdefault(rule[0], []).append(rule[1])
        for name in sets if found else ():
            listed = self._netlink.dump_found(set_codec.dump_elements(table, name))
            parts = [set_codec.listed_elements(each) for each in listed]
            found[f"set {name}"] = sorted(parts)
        return {name: tuple(parts) for name, parts in found.items()}

    def sets(self) -> dict[str, set_codec.SetInfo]:
        """The table's sets and maps; empty when it is not there. Raises: KernelError."""
        messages = self._netlink.dump_found(set_codec.dump_sets(self._table))
        found = (set_codec.parse_set(each, self._table) for each in messages)
        return {each.name: each for each in found if each is not None}

    def has(self, name: str, key: bytes) -> bool:
        """Raises: KernelError."""
        try:
            self._netlink.query(set_codec.get_element(self._table, name, key))
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True

    def print_of(self, name: str) -> SetPrint:
        """Print of one set or map: it is another when anything in it is. Raises: KernelError.

        Not for large ones: the kernel goes over them anew for each message of its answer.
        """
        count = total = 0
        for message in self._netlink.dump_found(set_codec.dump_elements(self._table, name)):
            for element in set_codec.split_elements(message):
                count += 1
                total += crc32(element)
        return SetPrint(count, total)

    def change(
        self,
        delete: Mapping[str, Iterable[bytes]],
        add: Mapping[str, Iterable[tuple[bytes, bytes]]],
    ) -> None:
        """In one transaction: by name of the map, keys that go and then elements that come.

        Raises: KernelError, and nothing was changed.
        """
        requests = [
            *(
                request
                for name, keys in delete.items()
                for request in set_codec.delete_elements(self._table, name, keys)
            ),
            *(
                request
                for name, elements in add.items()
                for request in set_codec.add_elements(self._table, name, elements)
            ),
        ]
        if requests:
            self._netlink.commit(requests)

    def delete_there(self, names: Collection[str], keys: Sequence[bytes]) -> None:
        """Those of the keys that are in each of these maps go from them, many in a transaction: any
        may end by itself meanwhile. Raises: KernelError; what is there now is not known."""
        due = [keys[at : at + _KEYS_AT_ONCE] for at in range(0, len(keys), _KEYS_AT_ONCE)]
        while due:
            some = due.pop()
            try:
                self.change(dict.fromkeys(names, some), {})
            except KernelError as error:
                if error.errno != errno.ENOENT:
                    raise
                half = len(some) // 2
                due += [some[:half], some[half:]] if half else []

    def change_keys(
        self, delete: Mapping[str, Iterable[bytes]], add: Mapping[str, Iterable[bytes]]
    ) -> None:
        """In one transaction: by name of the set, keys that go and then keys that come.

        A key that is there already may come again; one that is not there may not go. Raises:
        KernelError, and nothing was changed.
        """
        table, family = self._table, self._family
        requests = [
            *(
                request
                for name, keys in delete.items()
                for request in set_codec.delete_elements(table, name, keys, family=family)
            ),
            *(
                request
                for name, keys in add.items()
                for request in set_codec.add_keys(table, name, keys, family=family)
            ),
        ]
        if requests:
            self._netlink.commit(requests)

    def change_set(
        self, name: str, delete: Iterable[Range], add: Iterable[Range], *, intervals: bool
    ) -> None:
        """Changes one set: what goes, then what comes; without intervals, the first keys alone.

        So many at once that the kernel takes them: all or nothing up to `_AT_ONCE`. Raises:
        KernelError; what is there now is not known.
        """
        if intervals:
            gone = set_codec.delete_ranges(self._table, name, delete)
            come = set_codec.add_ranges(self._table, name, add)
        else:
            gone = set_codec.delete_elements(self._table, name, (first for first, _ in delete))
            come = set_codec.add_keys(self._table, name, (first for first, _ in add))
        requests = chain(gone, come)
        while part := list(islice(requests, _AT_ONCE)):
            self._netlink.commit(part)


def _elements(messages: Iterable[wire.Message]) -> Iterator[tuple[bytes, bytes]]:
    return chain.from_iterable(map(set_codec.parse_elements, messages))
