"""Who may talk to whom, and what makes the tunnel between them, by communities and by what the
network says. Pure."""

from __future__ import annotations

from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.network import DefaultCommunity, Encryption, Network, TunnelBackend

_OF_ALL = frozenset({Role.CLOUD, Role.FLANNEL})


def may_talk(network: Network, one: Grant, other: Grant) -> bool:
    """Whether the two may reach each other: the cloud always, the edge in a shared community.

    Nodes that are in no community share one if the network says so. A revoked node reaches nobody.
    flannel knows no communities: its nodes reach all.
    """
    if one.tombstone or other.tombstone or one.uid == other.uid:
        return False
    if not _OF_ALL.isdisjoint(one.roles) or not _OF_ALL.isdisjoint(other.roles):
        return True
    if one.communities or other.communities:
        return not set(one.communities).isdisjoint(other.communities)
    return network.default_community is DefaultCommunity.ALL


def why_apart(network: Network, one: Grant, other: Grant) -> str:
    """Why the two may not reach each other, for a person; empty: they may."""
    if may_talk(network, one, other):
        return ""
    for each in (one, other):
        if each.tombstone:
            return f"{each.name} was removed from the cluster"
    if one.uid == other.uid:
        return "they are one node"
    said = [
        f"{each.name} is in {', '.join(each.communities) or 'no community'}"
        for each in (one, other)
    ]
    mend = "limpet community add puts nodes into one"
    if not one.communities and not other.communities:
        return (
            f"neither {one.name} nor {other.name} is in a community, and the cluster's "
            f"default_community is {network.default_community.value} ({mend}, or limpet network "
            "set --default-community all lets all of them talk)"
        )
    return f"they share no community: {', '.join(said)} ({mend})"


def share_what_is_behind(one: Grant, other: Grant) -> bool:
    """Whether one other network is behind both: the cloud's, with ways of its own between them."""
    behind_both = bool(one.prefixes_behind and other.prefixes_behind)
    return behind_both and Role.CLOUD in one.roles and Role.CLOUD in other.roles


def in_clear_refused(network: Network) -> bool:
    """Whether nothing goes between nodes, or is let in, without a tunnel."""
    return network.encryption is Encryption.ALL


def backends_of(network: Network | None) -> frozenset[TunnelBackend]:
    """Those that some pair of nodes may have."""
    if network is None:
        return frozenset({TunnelBackend.WIREGUARD})
    return frozenset({network.tunnel_backend, *network.community_backends.values()})


def backend_between(network: Network, one: Grant, other: Grant) -> TunnelBackend:
    """The same for both ends: that of the first community by name that they share and that has
    one, else the network's."""
    for name in sorted(set(one.communities).intersection(other.communities)):
        if name in network.community_backends:
            return network.community_backends[name]
    return network.tunnel_backend
