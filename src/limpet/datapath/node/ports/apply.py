"""Port security in the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from limpet.base.errors import KernelError
from limpet.base.ownership import NFT_PORTS_TABLE
from limpet.datapath.node.ports.diff import Change, ChangeElements, PutTable
from limpet.datapath.node.ports.plan import key_of
from limpet.datapath.node.ports.ruleset import FORGED_COUNTER
from limpet.datapath.node.ports.state import PortTable
from limpet.linux.netlink.set_codec import BRIDGE
from limpet.linux.netlink.table_codec import OWNED, PERSISTENT, TableId
from limpet.linux.netlink.transactions import NftablesSocket, OwnTables
from limpet.linux.nftables import Nftables
from limpet.linux.set_elements import SetElements

_WHAT = "port security"
_TRIAL = f"{NFT_PORTS_TABLE}_trial"
_TABLE = TableId("bridge", NFT_PORTS_TABLE)


class PortKernel:
    """In the network namespace of the thread that makes and uses it."""

    def __init__(self, *, flags: int = OWNED | PERSISTENT) -> None:
        """`flags`: nobody else shall be able to change the table (OWNED), which stays when the
        socket goes (PERSISTENT), if the kernel can do both; 0: anybody can.

        Raises: LimpetError without the library.
        """
        self._netlink = NftablesSocket()
        self._nft = Nftables(NFT_PORTS_TABLE, family="bridge", netlink=self._netlink)
        self._elements = SetElements(NFT_PORTS_TABLE, family=BRIDGE, netlink=self._netlink)
        self._tables = OwnTables(self._netlink)
        self._flags = flags if self._nft.shares and self._can(flags) else 0
        self._lacks: str | None = None
        """Why the kernel can have no such table; None: nobody has tried."""

    def close(self) -> None:
        """The table stays, and is nobody's."""
        self._nft.close()
        self._elements.close()
        self._netlink.close()

    def _can(self, flags: int) -> bool:
        try:
            return self._tables.can(flags, TableId("inet", _TRIAL))
        except KernelError:  # whatever the kernel lacks is said where it is asked for the table
            return False

    def read(self) -> PortTable:
        """The kernel's table; no frame is known of an earlier agent's. Raises: KernelError."""
        return PortTable(*self._nft.read_table())

    def apply(self, change: Change) -> None:
        """Raises: KernelError."""
        match change:
            case PutTable(table):
                self._put_table(table)
            case ChangeElements(gone, come, after):
                try:
                    self._elements.change_keys(_keys(gone), _keys(come))
                except KernelError:  # another program has changed what is there
                    self._put_table(after)

    def _put_table(self, table: PortTable) -> None:
        """One that is there and is nobody's, as an earlier Limpet has left it, cannot become ours
        without a moment between, in which pods could send what they like: it stays as it is."""
        ours = False
        if self._flags:
            self._tables.look()
            if not table.frame:
                self._tables.empty([_TABLE], ())
            else:
                ours = self._tables.take([_TABLE], self._flags)
        self._nft.put_table(table.frame, adding=_adding(table), within=ours)

    def why_not(self) -> str:
        """Why this kernel can have no such table at all, tried once; empty: it can."""
        if self._lacks is None:
            self._lacks = self._try_out()
        return self._lacks

    def _try_out(self) -> str:
        chain = "{ type filter hook prerouting priority 0; }"
        at = f"bridge {_TRIAL}"
        try:
            self._nft.run(f"add table {at}\nadd chain {at} trial {chain}", what=_WHAT)
        except KernelError as error:
            return str(error)
        with suppress(KernelError):
            self._nft.run(f"delete table {at}", what=_WHAT)
        return ""

    def dropped_packets(self) -> int:
        """Since the table was put whole."""
        return self._nft.read_counter(FORGED_COUNTER)


def _keys(elements: Mapping[str, frozenset[str]]) -> dict[str, list[bytes]]:
    return {name: [key_of(each) for each in sorted(held)] for name, held in elements.items()}


def _adding(table: PortTable) -> str:
    """Commands of nft that put its elements there."""
    return "".join(
        f"add element bridge {NFT_PORTS_TABLE} {name} "
        f"{{ {', '.join(map(_quoted, sorted(held)))} }}\n"
        for name, held in table.elements.items()
        if held and table.frame
    )


def _quoted(element: str) -> str:
    ifname, dot, rest = element.partition(" . ")
    return f'"{ifname}"{dot}{rest}'
