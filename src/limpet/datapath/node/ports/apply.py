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
from limpet.linux.nftables import Nftables
from limpet.linux.set_elements import SetElements

_WHAT = "port security"
_TRIAL = f"{NFT_PORTS_TABLE}_trial"


class PortKernel:
    """In the network namespace of the thread that makes and uses it."""

    def __init__(self) -> None:
        """Raises: LimpetError without the library."""
        self._nft = Nftables(NFT_PORTS_TABLE, family="bridge")
        self._elements = SetElements(NFT_PORTS_TABLE, family=BRIDGE)
        self._lacks: str | None = None
        """Why the kernel can have no such table; None: nobody has tried."""

    def close(self) -> None:
        """The table stays."""
        self._nft.close()
        self._elements.close()

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
        self._nft.put_table(table.frame, adding=_adding(table))

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
