"""What goes into a node's timeline of its cluster: told by events, or found by looking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from limpet.agent.happenings.changed_at import ChangedAt
from limpet.agent.happenings.of_node import NodeHappenings
from limpet.agent.happenings.words import (
    Fact,
    Rung,
    Who,
    by_name,
    differences,
    node_joined,
    node_removed,
    path_changed,
    silent_changed,
)
from limpet.agent.kubernetes_side import KubernetesSide
from limpet.base.timer import Timer
from limpet.cloud.second_road.state import ApiServerState
from limpet.cloud.session import Session, SessionState
from limpet.cluster.membership import Membership, News
from limpet.cluster.replica import Change
from limpet.datapath.event import Event, LinksChanged, PathsChanged, ReachChanged
from limpet.datapath.together.peer_parts import PeerParts
from limpet.paths.prober import Prober
from limpet.picture.said import Level
from limpet.relay.client.relays import Relays

_LOOK_EVERY_S = 5.0
_NAT = {
    "none": "none",
    "same": "shows all others one port",
    "symmetric": "symmetric: shows each other node another port",
    "blocked": "no relay answers over UDP",
}


_NOT_REFUSED = "is not refused any more"


@dataclass(frozen=True, slots=True)
class Watched:
    """What is looked at."""

    membership: Membership
    session: Session
    kubernetes: KubernetesSide
    probing: Prober
    peer_parts: PeerParts
    relays: Relays


class ClusterHappenings:
    """For one event loop. Hears each event before all others do, and changes nothing."""

    def __init__(self, of_node: NodeHappenings, cluster: Watched, changed_at: ChangedAt) -> None:
        """`changed_at`: is told when the rung to a peer changes."""
        self._of_node = of_node
        self._cluster = cluster
        self.changed_at = changed_at
        self._rungs: dict[str, Rung] = {}
        """Rungs of the peers, by uid, as they were told last."""
        self._silent: frozenset[str] = frozenset()
        self._members: dict[str, str] = {}
        """Names of the other nodes by uid."""
        self._facts: dict[str, Fact] = {}
        self._timer = Timer("timeline", self._look)
        self._stirred = asyncio.Event()

    def start(self) -> None:
        """What is known now is no news."""
        membership = self._cluster.membership
        self._of_node.here = self._here
        self._rungs = {uid: self._rung(uid) for uid in self._cluster.probing.paths}
        self._members = {
            uid: entry.grant.name
            for uid, entry in membership.snapshot.nodes.items()
            if uid != membership.uid and not entry.grant.tombstone
        }
        notes = (each for each in self._now() if each.level is Level.NOTE or not each.state)
        self._facts = by_name(notes)
        self._timer.set_in(_LOOK_EVERY_S)

    def stop(self) -> None:
        self._timer.stop()

    @property
    def stirred(self) -> asyncio.Event:
        """Set with the next event; another one each time."""
        return self._stirred

    def hear(self, event: Event | News | Change) -> None:
        if not self._timer.is_set:
            return  # before the start, and after the end
        match event:
            case PathsChanged(uids):
                self._paths_changed(uids)
            case ReachChanged():
                self._reach_changed()
            case News():
                self._members_changed(event.uids)
            case LinksChanged():
                pass
            case _:
                return
        self._stirred.set()
        self._stirred = asyncio.Event()

    # What is told

    @property
    def _here(self) -> Who:
        membership = self._cluster.membership
        return Who(membership.uid, membership.name_of(membership.uid))

    def _who(self, uid: str) -> Who:
        return Who(uid, self._cluster.membership.name_of(uid))

    def _rung(self, uid: str) -> Rung:
        path = self._cluster.probing.paths.get(uid)
        if path is None:
            return Rung()
        relay = self._cluster.membership.name_of(path.relay) if path.relay else ""
        return Rung(path.rung.name, relay)

    def _paths_changed(self, uids: frozenset[str]) -> None:
        found = []
        for uid in sorted(uids):
            was, now = self._rungs.get(uid, Rung()), self._rung(uid)
            if was != now:
                self._rungs[uid] = now
                self.changed_at.note(uid)
                found.append(path_changed(self._here, self._who(uid), was, now))
        self._of_node.recorder.note(*found)

    def _reach_changed(self) -> None:
        probing = self._cluster.probing
        silent = frozenset(probing.reach.silent)
        changed = changed_silence(self._silent, silent, probing.is_probed)
        self._silent = silent
        self._of_node.recorder.note(
            *(
                silent_changed(self._here, self._who(uid), silent=uid in silent)
                for uid in changed
                if uid in self._cluster.membership.snapshot.nodes
            )
        )

    def _members_changed(self, uids: frozenset[str]) -> None:
        membership = self._cluster.membership
        nodes, found = membership.snapshot.nodes, []
        for uid in sorted(uids - {membership.uid}):
            entry = nodes.get(uid)
            is_there = entry is not None and not entry.grant.tombstone
            if is_there and uid not in self._members and entry is not None:
                self._members[uid] = entry.grant.name
                found.append(node_joined(self._here, Who(uid, entry.grant.name)))
            elif not is_there and uid in self._members:
                who = Who(uid, self._members.pop(uid))
                self._rungs.pop(uid, None)
                self.changed_at.forget(uid)
                found.append(node_removed(self._here, who))
        self._of_node.recorder.note(*found)

    # What is found by looking

    def _look(self) -> None:
        self._timer.set_in(_LOOK_EVERY_S)
        self._of_node.here = self._here
        now = list(self._now())
        if now != list(self._facts.values()):
            self._of_node.recorder.note(*differences(self._here, self._facts, now))
            self._facts = by_name(now)
            self._stirred.set()
            self._stirred = asyncio.Event()

    def _now(self) -> Iterator[Fact]:
        cluster = self._cluster
        api = cluster.kubernetes.api_server
        api_state = None if api is None else api.state
        yield from cloud_facts(cluster.session.state, api_state, self._facts)
        yield from self._of_itself()
        planned = cluster.peer_parts.overlay.planned
        for uid, what in sorted(planned.claims.items()):
            name = cluster.membership.name_of(uid)
            words = f"claims what is not its own: {what}"
            yield Fact("claim", name, words, well="claims nothing of others' any more")
        for alarm in cluster.membership.replica.alarms.all():
            by = cluster.membership.name_of(alarm.teller) if alarm.teller else "the controller"
            words = f"tells {alarm.kind} {alarm.name}, signed with a revoked key of the cluster"
            yield Fact("key", f"{by}, {alarm.kind}", words, Level.FAIL)
        services = cluster.kubernetes.services
        if services is not None:
            for key, trouble in sorted(services.part.troubles.items()):
                yield Fact("service", f"Service {'/'.join(key)}", trouble)
            failures = "; ".join(services.failures[:2])
            yield Fact("service", "Services on this node", failures, Level.FAIL)

    def _of_itself(self) -> Iterator[Fact]:
        cluster = self._cluster
        membership, parts = cluster.membership, cluster.peer_parts
        grant = membership.grant
        removed = "removed from the cluster" if membership.removed else ""
        yield Fact("membership", "this node", removed, Level.FAIL, well="is a member")
        cloned = "another machine has its identity" if membership.cloned else ""
        yield Fact("clone", "this node's identity", cloned, Level.FAIL)
        segments = ", ".join(map(str, grant.segments)) if grant is not None else ""
        yield Fact("segment", "segments of this node", segments or "none", Level.NOTE)
        communities = ", ".join(sorted(grant.communities)) if grant is not None else ""
        yield Fact("community", "communities of this node", communities or "none", Level.NOTE)
        links = ", ".join(f"{each.ifname} {_addresses(each.addresses)}" for each in parts.own.links)
        yield Fact("link", "links to other nodes", links or "none", Level.NOTE)
        for tunnel in parts.tunnels.all:
            yield Fact("tunnel", f"tunnel {tunnel.ifname}", tunnel.trouble if tunnel.needed else "")
        for version in (4, 6):
            kind = cluster.relays.kind(version).name.lower()
            yield from nat_facts(f"NAT of IPv{version}", kind, self._facts)
        disk = [*membership.replica.problems, *filter(None, [membership.replica.file.trouble])]
        yield Fact("disk", "what the node knows of its cluster", "; ".join(disk[:2]), Level.FAIL)


def changed_silence(
    before: frozenset[str], now: frozenset[str], is_probed: Callable[[str], bool]
) -> list[str]:
    """Uids of peers that are silent since, and of those that answer again. Who is asked no more,
    since it was removed or put apart, has not answered."""
    return sorted(now - before) + sorted(uid for uid in before - now if is_probed(uid))


def nat_facts(what: str, kind: str, before: Mapping[str, Fact]) -> Iterator[Fact]:
    """What is not known, since the links are others or relays do not answer, takes nothing back."""
    found = Fact("nat", what, _NAT.get(kind, ""), Level.NOTE)
    (name,) = by_name([found])
    if kind in _NAT:
        yield found
    elif name in before:
        yield before[name]


def cloud_facts(
    state: SessionState, api: ApiServerState | None, before: Mapping[str, Fact]
) -> Iterator[Fact]:
    """`before`: as it was told last, by `by_name`: a controller that is away takes nothing back."""
    lost = "" if state.connected else _lost(state.error)
    at = f"controller at {state.controller}" if state.controller else "controller"
    yield _connection("controller", "the controller", lost, f"is there again ({at})")
    refused = (
        Fact("segment", "a request for addresses", state.segment_refused, well=_NOT_REFUSED),
        Fact("controller", "what this node tells the controller", state.refused, well=_NOT_REFUSED),
    )
    if state.connected:
        yield from refused
    else:
        yield from (before[name] for name in by_name(refused) if name in before)
    if api is not None:
        lost = "" if api.connected else _lost(api.error)
        yield _connection("api-server", "the API server", lost, "is there again")


def _connection(kind: str, what: str, lost: str, well: str) -> Fact:
    """Another reason why it is lost is no news."""
    return Fact(kind, what, lost, well=well, mark="lost" if lost else "")


def _lost(error: str) -> str:
    return f"lost: {error}" if error else "not connected"


def _addresses(addresses: Iterable[object]) -> str:
    return " ".join(str(each) for each in addresses)
