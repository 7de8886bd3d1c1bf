"""Sites: nodes that stand together, told by their labels, proven by their paths, or guessed by the
public address that they share. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from limpet.base.addresses import is_public
from limpet.cluster.kinds.grant import ZONE_LABEL
from limpet.cluster.nodes import NodeEntry

LABELS = ("site", "limpet.dev/site", ZONE_LABEL)
"""Labels of a grant: the first that is there names the node's site."""


class By(Enum):
    """How it is known that the nodes of a site stand together, the surest first."""

    LABEL = "label"
    """A person says so."""
    PROVEN = "proven"
    """They reach each other without a tunnel."""
    NAT = "nat"
    """Others see them at one public address. Of mobile networks many sites have the same."""


@dataclass(frozen=True, slots=True)
class Site:
    name: str
    by: By


def sites_of(
    nodes: Mapping[str, NodeEntry], in_clear: Iterable[tuple[str, str]]
) -> dict[str, Site]:
    """By uid; a node that stands alone, as far as is known, has none.

    `in_clear`: pairs of uids that have proven to reach each other without a tunnel.
    """
    found: dict[str, Site] = {}
    groups = _Groups()
    for uid, entry in nodes.items():
        if entry.grant.tombstone:
            continue
        label = next((name for key in LABELS if (name := entry.grant.labels.get(key))), None)
        if label is not None:
            found[uid] = Site(label, By.LABEL)
    for one, other in in_clear:
        if one in nodes and other in nodes:
            groups.join(one, other)
    proven = {uid: groups.first(uid) for uid in groups.known}
    for uid, address in _behind(nodes):
        groups.join(uid, f"behind {address}")
    members: dict[str, list[str]] = defaultdict(list)
    for uid in groups.known & nodes.keys():
        members[groups.first(uid)].append(uid)
    for uids in members.values():
        found |= _site(uids, nodes, proven, found) if len(uids) > 1 else {}
    return found


def _site(
    uids: list[str],
    nodes: Mapping[str, NodeEntry],
    proven: Mapping[str, str],
    labelled: Mapping[str, Site],
) -> dict[str, Site]:
    """Sites of a group's nodes without a label, by uid: a proven group's only label is theirs.
    Where a NAT alone joins them a label takes that guess away, and leaves what is proven."""
    labels = {labelled[uid] for uid in uids if uid in labelled}
    others = [uid for uid in uids if uid not in labelled]
    together: dict[str, list[str]] = defaultdict(list)
    for uid in uids:
        together[proven.get(uid, uid)].append(uid)
    if not labels:
        first = min(nodes[uid].grant.name for uid in uids)
        by = By.PROVEN if len(together) == 1 else By.NAT
        return dict.fromkeys(others, Site(f"site of {first}", by))
    if len(together) == 1:
        return dict.fromkeys(others, labels.pop()) if len(labels) == 1 else {}
    found: dict[str, Site] = {}
    for some in together.values():
        found |= _site(some, nodes, proven, labelled) if len(some) > 1 else {}
    return found


def _behind(nodes: Mapping[str, NodeEntry]) -> Iterable[tuple[str, str]]:
    """Nodes and public IPv4 addresses that are not their own: those of a NAT."""
    for uid, entry in nodes.items():
        presence = entry.presence
        if presence is None or entry.grant.tombstone:
            continue
        for address, _port in presence.endpoints:
            if address.version == 4 and is_public(address) and address not in presence.addresses:
                yield uid, str(address)


class _Groups:
    """Union-find."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    @property
    def known(self) -> set[str]:
        return set(self._above)

    def first(self, uid: str) -> str:
        above = self._above
        root = uid
        while above.setdefault(root, root) != root:
            root = above[root]
        while above[uid] != root:
            above[uid], uid = root, above[uid]
        return root

    def join(self, one: str, other: str) -> None:
        first, second = sorted((self.first(one), self.first(other)))
        self._above[second] = first
