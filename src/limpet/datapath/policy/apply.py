"""The two tables in the kernel, through libnftables and by one socket.

Where the kernel can, they belong to that socket: nobody else can change or delete them, and they
stay when the agent ends (`linux.netlink.table_codec`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import islice

import structlog

from limpet.base.addresses import Address
from limpet.base.errors import KernelError
from limpet.base.ownership import (
    NFT_POLICY_SPARE_TABLE,
    NFT_POLICY_TABLE,
    NFT_POLICY_TRIAL_TABLE,
)
from limpet.datapath.policy.blocks import bounds_of_text
from limpet.datapath.policy.ruleset import DROPPED_COUNTER, NOTHING, PolicyTables
from limpet.datapath.policy.table import (
    Filling,
    NamedSet,
    Table,
    change_steps,
    fillings,
    must_be_replaced,
    put_commands,
    read_listing,
)
from limpet.linux.conntrack import forget_those
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.netlink.table_codec import TableId
from limpet.linux.netlink.transactions import NftablesSocket, OwnTables
from limpet.linux.nftables import Nftables
from limpet.linux.set_elements import Frame, SetElements, SetPrint

_log = structlog.get_logger("policy")

_WHAT = "network policies"
_TABLES, _SPARE = (
    [TableId(family, name) for family in ("inet", "bridge")]
    for name in (NFT_POLICY_TABLE, NFT_POLICY_SPARE_TABLE)
)
_MOST_LISTED = 50_000
"""Elements that libnftables may list: of each it keeps two kilobytes meanwhile."""
_SAMPLES = 32
_UNKNOWN = Table("inet", NFT_POLICY_TABLE, ("unknown",), {}, {"unknown": ("type unknown",)})
"""Differs from whatever should be there in what cannot be changed, so that is put whole."""


@dataclass(frozen=True, slots=True)
class _Left:
    """The inet table as we left it, and what the kernel has told of it then."""

    table: Table
    frame: Frame
    prints: Mapping[str, SetPrint]
    """Prints of sets that are not large, by name."""
    counts: Mapping[str, int | None]
    """Number of elements in large sets, by name."""


class PolicyKernel:
    """In the network namespace of the thread that makes and uses it."""

    def __init__(self, *, alone: bool = True) -> None:
        """`alone`: nobody else shall be able to change the tables, if the kernel can hold that.

        Raises: LimpetError without the library.
        """
        self.put_whole = 0
        """Times that the difference was refused."""
        self._netlink = NftablesSocket()
        self._inet = Nftables(NFT_POLICY_TABLE, netlink=self._netlink)
        """What changes the tables."""
        self._bridge = Nftables(NFT_POLICY_TABLE, family="bridge")
        self._sets = SetElements(NFT_POLICY_TABLE, netlink=self._netlink)
        trial = TableId("inet", NFT_POLICY_TRIAL_TABLE)
        self._tables = OwnTables(self._netlink, trial, alone=alone and self._inet.shares)
        if not self._tables.are_closed:
            _log.info("other programs can delete the tables of policies: from Linux 6.9 on not")
        self._left: _Left | None = None
        """Where it has large sets only: others are read."""

    def close(self) -> None:
        """The tables stay, and are nobody's."""
        self._inet.close()
        self._bridge.close()
        self._sets.close()
        self._netlink.close()

    def holds(self, tables: PolicyTables) -> bool:
        """Whether these are ours alone, as far as the kernel can, since they were read or changed
        last, and nothing else of ours is there."""
        return self._tables.hold(_ids(tables)) and not self._tables.has(_SPARE)

    def read(self) -> PolicyTables:
        """Raises: KernelError."""
        self._tables.look()
        return PolicyTables(self._read_inet(), _read("bridge", self._bridge))

    def _read_inet(self) -> Table:
        if self._left is not None:
            return self._left.table if self._is_as_left(self._left) else _UNKNOWN
        sizes = sum(each.size for each in self._sets.sets().values())
        return _UNKNOWN if sizes > 2 * _MOST_LISTED else _read("inet", self._inet)

    def _is_as_left(self, left: _Left) -> bool:
        """As far as can be told soon: to read a million elements takes the kernel half a minute. Of
        large sets it is how many there are, if the kernel says so, and whether some of them are."""
        if self._frame() != left.frame or self._counts(left.counts) != left.counts:
            return False
        return all(
            self._sets.print_of(name) == there for name, there in left.prints.items()
        ) and all(self._has_some(name, left.table.sets[name]) for name in left.counts)

    def _frame(self) -> Frame:
        return self._sets.read_frame(NFT_POLICY_TABLE, ())

    def _counts(self, names: Iterable[str]) -> dict[str, int | None]:
        told = self._sets.sets()
        return {name: told[name].held if name in told else 0 for name in names}

    def _has_some(self, name: str, held: NamedSet) -> bool:
        version = _version(held.lines)
        some = islice(held.elements, _SAMPLES)
        return all(self._sets.has(name, bounds_of_text(each, version)[0]) for each in some)

    def change(self, before: PolicyTables, after: PolicyTables) -> None:
        """Both, step by step, and they are ours. `before`: as far as is known.

        Raises: KernelError.
        """
        left, self._left = self._left, None
        replaced = must_be_replaced(before.inet, after.inet) or must_be_replaced(
            before.bridge, after.bridge
        )
        if replaced or not self._tables.take(_ids(after)):
            self._replace(after)
        else:
            try:
                self._walk(before, after)
            except KernelError:
                # The kernel has something else, or nft cannot do the difference: the whole.
                self.put_whole += 1
                self._replace(after)
        if self._tables.has(_SPARE):
            self._tables.empty(_SPARE, ())
        self._tables.look()
        self._note(left, before.inet, after.inet)

    def _walk(self, before: PolicyTables, after: PolicyTables) -> None:
        """Raises: KernelError."""
        inet = change_steps(before.inet, after.inet)
        bridge = change_steps(before.bridge, after.bridge)
        made, turned = fillings(before.inet, after.inet)
        for ours, bridged, elements in zip(inet, bridge, (made, turned, []), strict=True):
            if commands := ours + bridged:
                self._inet.run(commands, what=_WHAT)
            self._fill(elements)

    def _replace(self, after: PolicyTables) -> None:
        """Whatever is there. What libnftables says of a table takes its owner away, so that the
        table cannot be replaced in one transaction: others of the same rules hold pods meanwhile.
        They stay until `change` is through, or the next one. Raises: KernelError."""
        both = (after.inet, after.bridge)
        spare = (replace(each, name=NFT_POLICY_SPARE_TABLE) for each in both)
        self._inet.run("".join(map(put_commands, spare)), what=_WHAT)
        self._tables.look()
        self._tables.empty(_TABLES, _ids(after))
        self._walk(NOTHING, after)

    def _note(self, left: _Left | None, before: Table, after: Table) -> None:
        """What there is now is as it should be. `left`: before. Raises: KernelError."""
        if not any(each.is_large for each in after.sets.values()):
            return
        large = [name for name, each in after.sets.items() if each.is_large]
        known = left.prints if left is not None and left.table is before else {}
        prints = {
            name: known[name]
            if name in known and each is before.sets.get(name)
            else self._sets.print_of(name)
            for name, each in after.sets.items()
            if not each.is_large
        }
        self._left = _Left(after, self._frame(), prints, self._counts(large))

    def _fill(self, elements: Iterable[Filling]) -> None:
        """Raises: KernelError."""
        for name, lines, delete, add in elements:
            version = _version(lines)
            gone, come = ((bounds_of_text(x, version) for x in each) for each in (delete, add))
            self._sets.change_set(name, gone, come, intervals="flags interval" in lines)

    @staticmethod
    def own_addresses() -> frozenset[Address]:
        """Addresses of the namespace's links. Raises: KernelError."""
        with RouteSocket() as route:
            return frozenset(each.interface.ip for each in route.addresses())

    @staticmethod
    def forget_denied(
        addresses: Collection[Address], is_denied: Callable[[Address, Address, int, int], bool]
    ) -> int:
        """Flows from or to one of the addresses are forgotten if they are denied: source, target,
        number of the protocol, and port. Raises: KernelError."""
        return forget_those(
            addresses,
            lambda each: is_denied(
                ip_address(each.source), ip_address(each.target), each.protocol, each.port
            ),
        )

    def dropped_packets(self) -> int:
        """Since the table was made."""
        return self._inet.read_counter(DROPPED_COUNTER)


def _ids(tables: PolicyTables) -> list[TableId]:
    """Names of those that are not empty."""
    return [TableId(each.family, each.name) for each in (tables.inet, tables.bridge) if each]


def _version(lines: Sequence[str]) -> int:
    """IP version of the addresses in a large set."""
    return 4 if "ipv4_addr" in lines[0] else 6


def _read(family: str, nft: Nftables) -> Table:
    return read_listing(family, NFT_POLICY_TABLE, *nft.read_table())
