"""The two tables in the kernel, through libnftables."""

from __future__ import annotations

from limpet.base.addresses import Address
from limpet.base.errors import KernelError
from limpet.base.ownership import NFT_POLICY_TABLE
from limpet.datapath.policy.ruleset import DROPPED_COUNTER, PolicyTables
from limpet.datapath.policy.table import Table, change_steps, put_commands, read_listing
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.nftables import Nftables

_WHAT = "network policies"


class PolicyKernel:
    """In the network namespace of the thread that makes and uses it."""

    def __init__(self) -> None:
        """Raises: LimpetError without the library."""
        self.put_whole = 0
        """Times that the difference was refused."""
        self._inet = Nftables(NFT_POLICY_TABLE)
        self._bridge = Nftables(NFT_POLICY_TABLE, family="bridge")

    def close(self) -> None:
        """The tables stay."""
        self._inet.close()
        self._bridge.close()

    def read(self) -> PolicyTables:
        """Raises: KernelError."""
        return PolicyTables(_read("inet", self._inet), _read("bridge", self._bridge))

    def change(self, before: PolicyTables, after: PolicyTables) -> None:
        """Both, step by step; `before`: as far as is known. Raises: KernelError."""
        inet = change_steps(before.inet, after.inet)
        bridge = change_steps(before.bridge, after.bridge)
        try:
            for pair in zip(inet, bridge, strict=True):
                if commands := "".join(pair):
                    self._inet.run(commands, what=_WHAT)
        except KernelError:
            # The kernel has something else, or nft cannot do the difference: the whole.
            self.put_whole += 1
            self._inet.run(put_commands(after.inet) + put_commands(after.bridge), what=_WHAT)

    @staticmethod
    def own_addresses() -> frozenset[Address]:
        """Of the namespace's links. Raises: KernelError."""
        with RouteSocket() as route:
            return frozenset(each.interface.ip for each in route.addresses())

    def dropped_packets(self) -> int:
        """Since the table was made."""
        return self._inet.read_counter(DROPPED_COUNTER)


def _read(family: str, nft: Nftables) -> Table:
    return read_listing(family, NFT_POLICY_TABLE, nft.list_table() or "")
