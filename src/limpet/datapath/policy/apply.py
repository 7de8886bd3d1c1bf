"""The two tables in the kernel, through libnftables and by one socket.

Where the kernel can, they belong to that socket: nobody else can change or delete them, and they
stay when the agent ends (`linux.netlink.table_codec`). Where it can do the first alone, there are
twins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice

import structlog

from limpet.base.addresses import Address
from limpet.base.errors import KernelError
from limpet.base.ownership import NFT_POLICY_TABLE, NFT_POLICY_TRIAL_TABLE, POLICY_SOCKET
from limpet.base.process.lifetime import KEPT_DESCRIPTORS
from limpet.datapath.policy.blocks import bounds_of_text, version_of
from limpet.datapath.policy.ruleset import DROPPED_COUNTER, NOTHING, PolicyTables
from limpet.datapath.policy.table import NamedSet, Table, put_commands, read_listing
from limpet.datapath.policy.tables_apply import (
    WHAT,
    TablesWriter,
    cannot_become,
    named,
    table_ids,
    trial_commands,
)
from limpet.datapath.policy.twins_apply import SPARE, Twins
from limpet.linux.conntrack import forget_those
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.netlink.table_codec import OWNED, PERSISTENT, TableId
from limpet.linux.netlink.transactions import NftablesSocket, OwnTables
from limpet.linux.nftables import Nftables
from limpet.linux.set_elements import Frame, SetElements, SetPrint

_log = structlog.get_logger("policy")

_TABLES = [TableId(family, NFT_POLICY_TABLE) for family in ("inet", "bridge")]
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

    def __init__(self, *, flags: int = OWNED | PERSISTENT) -> None:
        """`flags`: nobody else shall be able to change the tables (OWNED), which stay when the
        socket goes (PERSISTENT): as far as the kernel can.

        Raises: LimpetError without the library.
        """
        self.put_whole = 0
        """Times that the difference was refused."""
        self._netlink = NftablesSocket(KEPT_DESCRIPTORS.find(POLICY_SOCKET))
        self._inet = Nftables(NFT_POLICY_TABLE, netlink=self._netlink)
        """What changes the tables."""
        self._bridge = Nftables(NFT_POLICY_TABLE, family="bridge")
        self._sets = SetElements(NFT_POLICY_TABLE, netlink=self._netlink)
        self._tables = OwnTables(self._netlink)
        self._writer = TablesWriter(self._inet, self._sets)
        able = self._able(flags) if self._inet.shares else 0
        self._flags = able if able & PERSISTENT else 0
        """What the tables are made with that outlive the agent."""
        self._twins = (
            Twins(self._netlink, self._tables, self._inet) if able and not self._flags else None
        )
        if able:
            KEPT_DESCRIPTORS.keep(POLICY_SOCKET, self._netlink.fileno())
        else:
            _log.info("other programs can delete the tables of policies: from Linux 5.12 on not")
        self._left: _Left | None = None
        """Where it has large sets only: others are read."""

    def _able(self, flags: int) -> int:
        """As many of them as the kernel can."""
        trial = TableId("inet", NFT_POLICY_TRIAL_TABLE)
        some = (each for each in (flags, flags & OWNED) if each)
        return next((each for each in some if self._tables.can(each, trial)), 0)

    def close(self) -> None:
        """The tables stay, and are nobody's; twins go. Where a service manager has the socket, all
        of them stay as they are."""
        if self._twins is not None:
            self._twins.close()
        self._inet.close()
        self._bridge.close()
        self._sets.close()
        self._netlink.close()

    def holds(self, tables: PolicyTables) -> bool:
        """Whether these are ours alone, as far as the kernel can, since they were read or changed
        last, and nothing else of ours is there."""
        if not self._tables.hold(table_ids(tables), self._flags):
            return False
        return self._twins.hold(tables) if self._twins else not self._tables.has(SPARE)

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
        version = version_of(held.lines)
        some = islice(held.elements, _SAMPLES)
        return all(self._sets.has(name, bounds_of_text(each, version)[0]) for each in some)

    def change(self, before: PolicyTables, after: PolicyTables) -> None:
        """Both, step by step, and they are ours. `before`: as far as is known.

        Raises: KernelError.
        """
        left, self._left = self._left, None
        ids = table_ids(after)
        if cannot_become(before, after) or not self._tables.take(ids, self._flags):
            self._replace(after)
        else:
            try:
                self._writer.walk(before, after)
            except KernelError:
                # The kernel has something else, or nft cannot do the difference: the whole.
                self.put_whole += 1
                self._replace(after)
        if self._twins is not None:
            self._twins.follow(after)
        elif self._tables.has(SPARE):
            self._tables.empty(SPARE, ())
        self._tables.look()
        self._note(left, before.inet, after.inet)

    def _replace(self, after: PolicyTables) -> None:
        """Whatever is there. What libnftables says of a table takes its owner away, so that the
        table cannot be replaced in one transaction: others of the same rules hold pods meanwhile.
        They stay until `change` is through, or the next one. What the kernel does not take at all
        changes nothing. Raises: KernelError."""
        if self._twins is not None:
            self._inet.check(trial_commands(after, NFT_POLICY_TRIAL_TABLE), what=WHAT)
        if self._twins is None or not self._twins.are_there:
            if self._twins is not None:
                self._tables.empty(SPARE, ())  # they may be those that could not follow
            spare = named(after, SPARE[0].name)
            self._inet.run(put_commands(spare.inet) + put_commands(spare.bridge), what=WHAT)
            self._tables.look()
        self._tables.empty(_TABLES, table_ids(after), self._flags)
        self._writer.walk(NOTHING, after)

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
        by_twins = self._twins.dropped_packets() if self._twins is not None else 0
        return self._inet.read_counter(DROPPED_COUNTER) + by_twins


def _read(family: str, nft: Nftables) -> Table:
    return read_listing(family, NFT_POLICY_TABLE, *nft.read_table())
