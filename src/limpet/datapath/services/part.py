"""The part of the loop for Services."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import structlog

from limpet.base.addresses import Address, Prefix
from limpet.base.errors import LimpetError
from limpet.base.ownership import NFT_SERVICES_SCRATCH_TABLE, NFT_SERVICES_TABLE
from limpet.datapath.event import ServingNodesChanged
from limpet.datapath.loop import Loop
from limpet.datapath.part import Part
from limpet.datapath.services.apply import ServicesKernel
from limpet.datapath.services.diff import Change, ForgetFlows, diff_services
from limpet.datapath.services.kube_proxy import HALF_CLOSED, HALF_CLOSED_S
from limpet.datapath.services.plan import Planner
from limpet.datapath.services.sockets.attached_apply import detach_programs
from limpet.datapath.services.sockets.diff import SocketChange
from limpet.datapath.services.sockets.pins_apply import pins_of, remove_pins
from limpet.datapath.services.sockets.side import SocketSide
from limpet.datapath.services.state import ServicesState, StaleFlows, Surroundings
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.owned import Owned
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from limpet.services.values import ServiceName

_log = structlog.get_logger("services")

_ADDRESSES = (5, 9)
"""RTNLGRP_IPV4_IFADDR, IPV6_IFADDR. Source: include/uapi/linux/rtnetlink.h."""
_MOST_READ = 5_000
"""Elements that are read again with each resync, in some 50 ms."""
_EVERY = 10
_AT_ONCE = 400
"""Services that are planned in one round, in some 50 ms of CPU: others have their turn meanwhile.
More rounds take longer: each ends with a transaction, for which the kernel waits."""


def _nobody(_flows: StaleFlows) -> None:
    """There is none who has to be told."""


def _not_kept() -> None:
    """There is no file of them."""


@dataclass(frozen=True, slots=True)
class ServicesContext:
    """What the part is told by: the node's pods, and what the node knows of others."""

    surroundings: Callable[[], Surroundings]
    here: Callable[[], Here]
    forgotten: Callable[[StaleFlows], None] = _nobody
    """Told of flows that stick to who serves no more, when the kernel has forgotten them."""
    part_taken: Callable[[], None] = _not_kept
    """Told where what could be read of a damaged file is served, as all that there is."""


class ServicesPart(Part[ServicesState, Change | SocketChange]):
    """Runs on the event loop's thread."""

    name = "services"
    groups = _ADDRESSES
    nftables = True
    prompt = True
    rests = 1

    def __init__(
        self,
        loop: Loop,
        catalog: Catalog,
        asked: ServicesContext,
        sockets: SocketSide | None = None,
    ) -> None:
        """`sockets`: eBPF programs beside the table; None: it serves alone. Raises: LimpetError."""
        self.catalog = catalog
        self.here = asked.here()
        self._loop = loop
        self._asked = asked
        self.sockets = sockets
        self._planner = Planner(sockets.wishes if sockets is not None else None)
        self._kernel = ServicesKernel()
        self._due: dict[ServiceName, None] = dict.fromkeys(each.key for each in catalog)
        """In the order in which they became so."""
        self._around: Surroundings | None = None
        self._serving: tuple[str, ...] = ()
        self._is_known = False
        """The kernel's state is as it was read or put last."""
        self._resyncs = 0

    @staticmethod
    def owned(run_dir: Path) -> Owned:
        tables = (NFT_SERVICES_TABLE, NFT_SERVICES_SCRATCH_TABLE)
        return Owned(
            nft_tables=tables,
            sysctls={HALF_CLOSED.rsplit("/", 1)[-1]: (str(HALF_CLOSED_S),)},
            ends=(partial(_end_programs, run_dir),),
        )

    def close(self) -> None:
        """What is in the kernel stays."""
        self._kernel.close()
        if self.sockets is not None:
            self.sockets.close()

    @property
    def count(self) -> int:
        """Elements that it wants in the kernel."""
        return self._planner.count

    @property
    def troubles(self) -> Mapping[ServiceName, str]:
        """Services that are not served as they ask, and why."""
        return self._planner.troubles

    @property
    def without_programs(self) -> Collection[ServiceName]:
        """Services for which the maps of eBPF programs have no room: nftables serves them."""
        return self._planner.sockets.left

    # What it is told

    def changed(self, names: Iterable[ServiceName], why: str) -> None:
        """These Services, or their endpoints, are others than before."""
        if self.due(names):
            self._loop.wake(self, why)

    def due(self, names: Iterable[ServiceName]) -> bool:
        """The next round, whenever it is, plans these Services; False: there are none."""
        self._due.update(dict.fromkeys(names))
        return bool(self._due)

    def look_around(self, why: str) -> None:
        """What is known of nodes, or of this node's pods, may be other than before."""
        if self.look():
            self._loop.wake(self, why)

    def look(self) -> bool:
        """Whether a round is needed."""
        before, now = self.here, self._asked.here()
        if now != before:
            self._due.update(dict.fromkeys(self._touched_by(before, now)))
            self.here = now
        if self.sockets is not None and self.sockets.look():
            return True
        return bool(self._due) or self._surroundings() != self._around

    def _touched_by(self, before: Here, now: Here) -> Iterable[ServiceName]:
        """Services with an endpoint that is judged otherwise."""
        if (before.node, before.zone) != (now.node, now.zone):
            return [each.key for each in self.catalog]
        nodes = set(before.silent) ^ set(now.silent)
        nodes |= {
            name
            for name in before.distances.keys() | now.distances.keys()
            if before.distances.get(name) != now.distances.get(name)
        }
        addresses = set(before.gone) ^ set(now.gone)
        return {
            each.service_key
            for each in self.catalog.all_slices()
            if any(x.node in nodes or x.address in addresses for x in each.endpoints)
        }

    # A round

    def plan(self) -> ServicesState:
        if self.catalog.damage and not self.catalog.is_part_served:
            if self._kernel.has_former():
                # Whatever could not be read would be taken out of it, and may be the way to the
                # only one that knows.
                raise LimpetError(
                    f"know all Services: {self.catalog.damage} in the file of them (what holds in "
                    "the kernel goes on as it is until the API server has told them)"
                )
            # After a boot what could be read is all that there is.
            self.catalog.is_part_served = True
            self._asked.part_taken()
        self._kernel.look_at_addresses()
        around = self._surroundings()
        if around != self._around:
            self._planner.surround(around)
            self._around = around
        known, left = dict(self._planner.troubles), set(self._planner.sockets.left)
        self._planner.replan(self._take_due(), self.catalog, self.here)
        for name, why in self._planner.troubles.items():
            if known.get(name) != why:
                words = "a Service is not served as it asks"
                _log.warning(words, by_others=True, service="/".join(name), why=why)
        for name in self._planner.sockets.left - left:
            words = "a Service is left to nftables: the eBPF programs' maps have no room for it"
            _log.warning(words, by_others=True, service="/".join(name))
        serving = self._planner.serving()
        if set(serving) != set(self._serving):
            self._serving = serving
            self._loop.tell(ServingNodesChanged(serving))
        want = self._planner.want()
        if self.sockets is not None:
            want = replace(want, sockets=self.sockets.want(want.sockets))
        return want

    def _take_due(self) -> Collection[ServiceName]:
        """Not all of many at once, where the kernel is known to have the others as they were: what
        is not planned yet would be taken for what nobody wants."""
        if not self._is_known or len(self._due) <= _AT_ONCE:
            due, self._due = self._due, {}
            return due
        some = list(islice(self._due, _AT_ONCE))
        for name in some:
            del self._due[name]
        self._loop.wake(self, "more Services are others", goes_on=True)
        return some

    def state(self, want: ServicesState) -> ServicesState:
        if not self._is_known:
            self._kernel.read(want)
        return self._kernel.state

    def diff(self, want: ServicesState, have: ServicesState) -> Sequence[Change | SocketChange]:
        touched = self._planner.touched if self._is_known else None
        changes = diff_services(want, have, touched=touched, stale=StaleFlows())
        if touched is None and changes:
            self._planner.suspect_flows()
        if stale := self._planner.stale():
            changes.append(ForgetFlows(stale))
        if self.sockets is None:
            return changes
        return [*changes, *self.sockets.diff(want.sockets, touched, stale, self._any_stale)]

    def _any_stale(self) -> StaleFlows:
        self._planner.suspect_flows()
        return self._planner.stale()

    def apply(self, changes: Sequence[Change | SocketChange]) -> list[str]:
        tables = [each for each in changes if not isinstance(each, SocketChange)]
        failures = self._kernel.apply(tables)
        self._is_known = not failures
        if self.sockets is not None:
            # Also if the table could not be changed: one of the two is right at least.
            failures += self.sockets.apply([x for x in changes if isinstance(x, SocketChange)])
        for each in tables:
            if isinstance(each, ForgetFlows):
                self._asked.forgotten(each.flows)
        if self._is_known:
            self._planner.settled()
            self._planner.forgotten()
        return failures

    def resync(self) -> None:
        """All elements are read again; many only now and then: it takes as long as many rounds."""
        self._resyncs += 1
        self._kernel.is_own_stale = True
        is_all = self._planner.count <= _MOST_READ or self._resyncs % _EVERY == 0
        if is_all:
            self._is_known = False
        if self.sockets is not None:
            self.sockets.suspect(maps=is_all)

    def suspect_nftables(self) -> None:
        self._is_known = False

    def hear(self, message: wire.Message) -> None:
        self._kernel.is_own_stale |= message.type in (wire.RTM_NEWADDR, wire.RTM_DELADDR)

    def damage(self) -> str:
        before = self._own()
        self._kernel.look_at_addresses()
        now = self._own()
        is_other = self._around is not None and now != before
        return "this node has other addresses" if is_other else ""

    def broke_off(self, error: Exception) -> None:
        """What was planned may be half of it."""
        self._is_known = False
        if self.sockets is not None:
            self.sockets.suspect(maps=True)
        self._due.update(dict.fromkeys(self._planner.services))
        self._due.update(dict.fromkeys(each.key for each in self.catalog))

    def _surroundings(self) -> Surroundings:
        around = self._asked.surroundings()
        own, lent, links = self._own()
        return replace(around, own=around.own | own, lent=lent, links=links)

    def _own(self) -> tuple[frozenset[Address], frozenset[Address], frozenset[Prefix]]:
        return self._kernel.own, self._kernel.lent, self._kernel.links


def _end_programs(run_dir: Path, _route: RouteSocket) -> list[str]:
    pins = pins_of(run_dir)
    were_pinned = remove_pins(pins)
    if not detach_programs() and not were_pinned:
        return []
    return [f"eBPF programs pinned in {pins if were_pinned else 'another bpffs'}: removed"]
