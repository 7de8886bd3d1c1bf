"""The rules of policies a second time, where a table that belongs to a socket ends with it.

So it is from Linux 5.12 to 6.8 (Debian 12 has 6.1). The tables that have to outlive the agent are
nobody's there, and whoever flushes the ruleset takes them. These belong to the agent's socket: they
hold pods until those are back, and go when it ends. A packet passes only where both let it.
"""

from __future__ import annotations

from limpet.base.ownership import NFT_POLICY_SPARE_TABLE
from limpet.datapath.policy.ruleset import DROPPED_COUNTER, NOTHING, PolicyTables
from limpet.datapath.policy.tables_apply import TablesWriter, cannot_become, named, table_ids
from limpet.linux.netlink.table_codec import OWNED, TableId
from limpet.linux.netlink.transactions import NftablesSocket, OwnTables
from limpet.linux.nftables import Nftables
from limpet.linux.set_elements import SetElements

SPARE = [TableId(family, NFT_POLICY_SPARE_TABLE) for family in ("inet", "bridge")]


class Twins:
    """In the network namespace of the thread that makes and uses it."""

    def __init__(self, netlink: NftablesSocket, tables: OwnTables, nft: Nftables) -> None:
        """`tables` and `nft`: by the same socket."""
        self._tables = tables
        self._writer = TablesWriter(nft, SetElements(NFT_POLICY_SPARE_TABLE, netlink=netlink))
        self._reader = Nftables(NFT_POLICY_SPARE_TABLE)
        self._of: PolicyTables | None = None
        """The tables whose rules the twins have; None: nobody knows."""

    def close(self) -> None:
        """They go when the socket does."""
        self._reader.close()

    @property
    def are_there(self) -> bool:
        return self._of is not None and self._of != NOTHING

    def hold(self, tables: PolicyTables) -> bool:
        """Whether they have these rules. Nobody else can have changed them."""
        return self._of == tables

    def follow(self, after: PolicyTables) -> None:
        """They have these rules when this returns. Raises: KernelError."""
        before, self._of = self._of, None
        now = named(after, NFT_POLICY_SPARE_TABLE)
        then = named(before or NOTHING, NFT_POLICY_SPARE_TABLE)
        kept = table_ids(now)
        if before is None or cannot_become(then, now) or table_ids(then) != kept:
            self._tables.empty(SPARE, kept, OWNED)
            then = named(NOTHING, NFT_POLICY_SPARE_TABLE)
        self._writer.walk(then, now)
        self._of = after

    def dropped_packets(self) -> int:
        """Packets that met these first."""
        return self._reader.read_counter(DROPPED_COUNTER)
