"""What several peers want of the kernel, and who has it. Pure.

A MAC is the peer's for whom more speaks than its own word (`vtep_mac.is_its_own`); where that is
none of them, or several, nobody has it: packets for one node never go to another because that one
says so. A prefix is that of the peer whose grant the cluster has signed last. No uid decides
anything: who wants a low one, or a high one, makes keys until it has one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from limpet.cluster.nodes import NodeEntry, newest_grant
from limpet.cluster.topology.vtep_mac import is_its_own
from limpet.datapath.overlay.state import FDB, FdbEntry, Key, PeerPart

Nodes = Mapping[str, NodeEntry]


def settle_contests(
    nodes: Nodes, parts: Mapping[str, PeerPart], contested: Collection[Key]
) -> dict[str, PeerPart]:
    """What remains to those who lose something, by uid."""
    left: dict[str, PeerPart] = {}
    for key, uids in _wanting(parts, [key for key in contested if key[0] == FDB]).items():
        _settle_mac(nodes, {uid: left.get(uid, parts[uid]) for uid in uids}, key, left)
    # Whoever is not reached by VXLAN wants no route by it.
    rest = {uid: left.get(uid, part) for uid, part in parts.items()}
    for key, uids in _wanting(rest, [key for key in contested if key[0] != FDB]).items():
        winner = newest_grant(nodes[uid].grant for uid in uids)
        for uid in uids:
            if uid != winner:
                left[uid] = _without(left.get(uid, parts[uid]), key, "another's grant is newer")
    return left


def _wanting(parts: Mapping[str, PeerPart], keys: Collection[Key]) -> dict[Key, list[str]]:
    """By key, in order, those who want it, where these are several."""
    if not keys:
        return {}
    found: dict[Key, list[str]] = {key: [] for key in sorted(keys)}
    for uid, part in parts.items():
        for entry in part.entries:
            if (key := entry.key) in found:
                found[key].append(uid)
    return {key: uids for key, uids in found.items() if len(uids) > 1}


def _settle_mac(
    nodes: Nodes, wanting: Mapping[str, PeerPart], key: Key, left: dict[str, PeerPart]
) -> None:
    entries = {
        uid: next(entry for entry in part.fdb if entry.key == key) for uid, part in wanting.items()
    }
    owners = [
        uid
        for uid, entry in entries.items()
        if is_its_own(nodes[uid], entry.underlay.version, entry.mac)
    ]
    for uid, entry in entries.items():
        if owners != [uid]:
            others = owners if len(owners) == 1 else [each for each in entries if each != uid]
            named = ", ".join(sorted(f"{nodes[each].grant.name} ({each})" for each in others))
            whose = f"which is that of {named}"
            if len(owners) != 1:
                whose = f"as {named} does, and nothing but their own word says whose it is"
            words = f"it announces {entry.mac} as its VXLAN device's MAC, {whose}"
            left[uid] = _without_vxlan(wanting[uid], entry, words)


def _without_vxlan(part: PeerPart, entry: FdbEntry, words: str) -> PeerPart:
    """Not by that entry's device."""
    device = entry.device
    routes = tuple(each for each in part.routes if each.device != device)
    lost = tuple((each.prefix, words) for each in part.routes if each.device == device)
    return part._replace(
        routes=routes,
        neighbours=tuple(each for each in part.neighbours if each.device != device),
        fdb=tuple(each for each in part.fdb if each.device != device),
        without=part.without + lost,
        refused=part.refused or ("" if routes else words),
        claims=words,
    )


def _without(part: PeerPart, key: Key, words: str) -> PeerPart:
    routes = tuple(each for each in part.routes if each.key != key)
    lost = tuple((each.prefix, words) for each in part.routes if each.key == key)
    return part._replace(
        routes=routes,
        neighbours=tuple(each for each in part.neighbours if each.key != key),
        without=part.without + lost,
        refused=part.refused or ("" if routes else words),
    )
