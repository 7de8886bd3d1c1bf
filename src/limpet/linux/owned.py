"""What may be taken away as ours, by the marks on it: nobody has to remember anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from limpet.linux.netlink.codec import Request
from limpet.linux.netlink.link_codec import LinkInfo
from limpet.linux.netlink.socket import RouteSocket


@dataclass(frozen=True, slots=True)
class LinkMark:
    """Tells our links from others'; what is empty or None is not looked at."""

    kind: str = ""
    group: int | None = None
    ifname_prefix: str = ""
    alias: str = ""

    def is_on(self, link: LinkInfo) -> bool:
        return (
            link.kind == (self.kind or link.kind)
            and link.group == (link.group if self.group is None else self.group)
            and link.ifname.startswith(self.ifname_prefix)
            and link.alias == (self.alias or link.alias)
        )


def _nothing(_route: RouteSocket) -> Sequence[Request]:
    return ()


@dataclass(frozen=True, slots=True)
class Owned:
    """All that one owner has in the kernel, also when no agent runs and nothing is configured."""

    links: tuple[LinkMark, ...] = ()
    nft_tables: tuple[str, ...] = ()
    """Tables of family inet."""
    nft_bridge_tables: tuple[str, ...] = ()
    nft_netdev_tables: tuple[str, ...] = ()
    sysctls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Last part of a setting's path, and the values that it may have by us."""
    deletions: Callable[[RouteSocket], Sequence[Request]] = _nothing
    """What takes the rules and routes away that are there. Raises: KernelError."""
    ends: tuple[Callable[[RouteSocket], Iterable[str]], ...] = ()
    """Each ends something else, a program perhaps, and says what it ended. Raises: LimpetError."""

    @property
    def tables(self) -> tuple[tuple[str, str], ...]:
        """Families and names of its nftables tables."""
        by_family = (
            ("inet", self.nft_tables),
            ("bridge", self.nft_bridge_tables),
            ("netdev", self.nft_netdev_tables),
        )
        return tuple((family, name) for family, names in by_family for name in names)

    def has(self, link: LinkInfo) -> bool:
        return any(mark.is_on(link) for mark in self.links)
