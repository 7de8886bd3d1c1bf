"""Others' nftables chains, those of iptables-nft among them, read whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from limpet.base.errors import KernelError
from limpet.cli.doctor.firewall.codec import Key, parse_ruleset
from limpet.cli.doctor.firewall.values import Chain, Dropped, Rule, Traffic
from limpet.cli.doctor.firewall.verdict import find_drop
from limpet.linux.nftables import Nftables

_HANDLE, _JSON = 1 << 3, 1 << 4
"""Source: NFT_CTX_OUTPUT_HANDLE, NFT_CTX_OUTPUT_JSON, libnftables(3)."""
_OWN = "limpet"
_FAMILIES = ("ip", "ip6", "inet")
_COUNTED = re.compile(r" ?counter packets \d+ bytes \d+")


@dataclass(frozen=True, slots=True)
class Firewall:
    """Of the network namespace that it was read in."""

    chains: dict[Key, Chain]

    def base(self, hooks: Iterable[str]) -> Iterator[Chain]:
        """Filter chains of others on these hooks."""
        for hook in hooks:
            for chain in self.chains.values():
                if chain.hook == hook and chain.filters:
                    yield chain

    def drops(self, hooks: Iterable[str], traffic: Traffic) -> Iterator[tuple[Chain, Dropped]]:
        """Base chains that drop packets of the kind, or may, each with what does."""
        for chain in self.base(hooks):
            dropped = find_drop(self.chains, chain, traffic)
            if dropped is not None:
                yield chain, dropped


class FirewallReader:
    """For the network namespace of the thread that makes and uses it."""

    def __init__(self) -> None:
        """Raises: LimpetError without libnftables."""
        self._nft = Nftables()

    def close(self) -> None:
        self._nft.close()

    def read(self) -> Firewall:
        """Tables of others that have chains on a hook. Raises: KernelError."""
        with self._nft.printing(_JSON):
            found = self._parse("list chains", "chains")
            tables = dict.fromkeys(
                (family, table)
                for (family, table, _), chain in found.items()
                if chain.hook and family in _FAMILIES and not _is_ours(family, table)
            )
            chains: dict[Key, Chain] = {}
            for family, table in tables:
                chains |= self._parse(f"list table {family} {table}", f"table {table}")
        return Firewall(chains)

    def words(self, chain: Chain, rule: Rule) -> str:
        """A rule as a person finds it in the listing; empty if it is gone. Raises: KernelError."""
        with self._nft.printing(_HANDLE):
            listing = self._nft.run(
                f"list chain {chain.family} {chain.table} {chain.name}", what=str(chain)
            )
        for line in listing.splitlines():
            text, _, handle = line.rpartition(" # handle ")
            if handle == str(rule.handle):
                return " ".join(_COUNTED.sub("", text).split())
        return ""

    def _parse(self, command: str, what: str) -> dict[Key, Chain]:
        try:
            return parse_ruleset(self._nft.run(command, what=what) or '{"nftables": []}')
        except ValueError as error:
            raise KernelError("understand nft's list of", what, 22, str(error)) from error


def _is_ours(family: str, table: str) -> bool:
    return family == "inet" and (table == _OWN or table.startswith(f"{_OWN}_"))


@contextmanager
def reading() -> Iterator[FirewallReader]:
    """Raises: LimpetError without libnftables."""
    reader = FirewallReader()
    try:
        yield reader
    finally:
        reader.close()
