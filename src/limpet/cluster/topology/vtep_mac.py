"""MACs of VXLAN devices: a node announces one as its own, and it may be another's. Pure."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from limpet.cluster.nodes import NodeEntry

_MADE_HERE = b"\x0e\x4c"
"""Its first bytes: locally administered, unicast."""


@lru_cache(maxsize=1 << 14)
def derived_vtep_mac(uid: str, version: int) -> str:
    """MAC for a node that has none from before.

    `version`: IP version of the underlay.
    """
    return (_MADE_HERE + hashlib.sha256(f"vtep {version} {uid}".encode()).digest()[:4]).hex(":")


def is_made_of_another(uid: str, version: int, mac: str) -> bool:
    """Whether it was made of a node's uid, and not of this one's."""
    return mac.startswith(_MADE_HERE.hex(":")) and mac != derived_vtep_mac(uid, version)


def is_its_own(entry: NodeEntry, version: int, mac: str) -> bool:
    """Whether more than the node's own word makes the MAC the node's: it is made of its uid, or the
    cluster has signed that it brought it along from flannel, or speaks for it."""
    grant = entry.grant
    return (
        grant.is_flannel
        or grant.vtep_macs.get(version) == mac
        or derived_vtep_mac(grant.uid, version) == mac
    )
