"""The Service that has a key of the table, of several that want it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from ipaddress import ip_address, ip_network

from limpet.base.addresses import Prefix, packed
from limpet.base.node_state import PORTS_OF_A_NODE, PortRange
from limpet.datapath.services.elements import Choice, Frontend
from limpet.datapath.services.state import Surroundings
from limpet.services.catalog import Catalog
from limpet.services.values import Service, ServiceName

Place = tuple[str, bytes]
"""A map, and a key in it."""
Rank = tuple[int, str, ServiceName]
"""The least of those that want one place has it. First in it stands what it asks by: who may write
a Service chooses its external addresses, and not its cluster address. Then since when it is there,
and its name: whoever plans the same Services finds the same, in whatever order they came."""

_Served = tuple[frozenset[bytes], frozenset[tuple[str, int]]]
"""Addresses, and protocols and ports, of one slice of a Service."""
_IPSEC: frozenset[PortRange] = frozenset({("UDP", 500, 500), ("UDP", 4500, 4500)})
"""Key exchange, and what it protects. A VPN's server in a pod may have them by a hostPort."""
_NAMES = 53
_API_SERVER = ("default", "kubernetes")
"""The Service whose endpoints are the API servers. Source: pkg/controlplane/reconcilers."""


class Claims:
    """Who has what, and who would have it next; of one that wants it no more nothing is kept.

    A Service that is planned anew is released first, asks for what it wants, and is settled.
    """

    def __init__(self) -> None:
        self._holder: dict[str, dict[bytes, ServiceName]] = defaultdict(dict)
        """By map and key: a pair for each would take 2 MB of 10,000 Services."""
        self._ranks: dict[Place, Rank] = {}
        """Ranks of holders, where it is not that of a cluster address."""
        self._waiting: dict[Place, dict[ServiceName, Rank]] = {}
        """Who wants what another has."""
        self._waits: dict[ServiceName, set[Place]] = {}
        """The same by who waits."""
        self._free: dict[Place, Rank] = {}
        """What was given back and is wanted by others, and the rank of who had it."""

    @property
    def waiting(self) -> int:
        """How often somebody wants what another has."""
        return sum(map(len, self._waits.values()))

    def release(self, name: ServiceName, places: Collection[Place]) -> None:
        """It has and wants nothing, until it asks again. `places`: at least all that it has."""
        for place in self._waits.pop(name, ()):
            waiting = self._waiting[place]
            rank = waiting.pop(name)
            if not waiting:
                del self._waiting[place]
            elif place[1] not in self._holder[place[0]]:
                self._free.setdefault(place, rank)
        for place in places:
            map_name, key = place
            held = self._holder[map_name]
            if held.get(key) == name:
                del held[key]
                rank = self._ranks.pop(place, (0, "", name))
                if place in self._waiting:
                    self._free[place] = rank

    def claim(self, place: Place, rank: Rank) -> tuple[ServiceName, ServiceName | None]:
        """Who has it now, or will when it is planned, and who had to leave it for the one that
        asks: that one has to be planned anew, too."""
        name = rank[2]
        map_name, key = place
        held = self._holder[map_name]
        holder = held.get(key)
        if holder == name:
            return name, None
        if holder is None:
            waiting = self._waiting.get(place)
            # Who had it is before all that wait; else it may be another's turn.
            if waiting and self._free.get(place) != rank:
                best = min(waiting.values())
                if best < rank:
                    self._wait(place, rank)
                    return best[2], None
            self._take(place, rank)
            return name, None
        held_by = self._ranks.get(place, (0, "", holder))
        if held_by < rank:
            self._wait(place, rank)
            return holder, None
        self._wait(place, held_by)
        self._take(place, rank)
        return name, holder

    def share(self, place: Place, name: ServiceName) -> bool:
        """Whether it is the one to write what all that want the place would write alike."""
        held = self._holder[place[0]]
        if held.setdefault(place[1], name) == name:
            return True
        self._wait(place, (0, "", name))
        return False

    def settle(self) -> set[ServiceName]:
        """Who may have now what others have given back: each has to be planned anew."""
        due = {
            min(waiting.values())[2]
            for place in self._free
            if place[1] not in self._holder[place[0]] and (waiting := self._waiting.get(place))
        }
        self._free.clear()
        return due

    def holder(self, place: Place) -> ServiceName | None:
        return self._holder[place[0]].get(place[1])

    def of(self, name: ServiceName) -> set[Place]:
        """All that it has. Looks at everybody's."""
        return {
            (map_name, key)
            for map_name, held in self._holder.items()
            for key, holder in held.items()
            if holder == name
        }

    def _take(self, place: Place, rank: Rank) -> None:
        self._holder[place[0]][place[1]] = rank[2]
        if rank[0]:
            self._ranks[place] = rank
        else:
            self._ranks.pop(place, None)

    def _wait(self, place: Place, rank: Rank) -> None:
        self._waiting.setdefault(place, {})[rank[2]] = rank
        self._waits.setdefault(rank[2], set()).add(place)


class Reserved:
    """Addresses that no Service has as an outer one (an external or a load balancer's), and which
    Services ask by such."""

    def __init__(self) -> None:
        self._nodes: frozenset[bytes] = frozenset()
        """Others."""
        self._reached: dict[bytes, set[int]] = {}
        """UDP ports by which nodes are reached, by address."""
        self._own: frozenset[bytes] = frozenset()
        self._own_ports: frozenset[PortRange] = frozenset()
        self._lent: frozenset[bytes] = frozenset()
        self._names_at: frozenset[bytes] = frozenset()
        self._pods: frozenset[Prefix] = frozenset()
        self.servers: frozenset[bytes] = frozenset()
        """API servers."""
        self._served: frozenset[_Served] = frozenset()
        """Where they answer, by slice."""
        self._is_other = False
        """They are others than when `look` was called last."""
        self._outer = _Addresses()
        self._elsewhere = _Addresses()
        """Cluster addresses of Services that another proxy serves."""

    def put(self, around: Surroundings) -> None:
        before = self._looked_at
        self._nodes = frozenset(each.packed for each in around.nodes)
        self._reached = {each.packed: set() for each, _ in around.reached}
        for reached_at, port in around.reached:
            self._reached[reached_at.packed].add(port)
        pods = (*around.cluster, *around.pods)
        # Those by which pods know the node are as closed as pods' own, at each port.
        self._own = frozenset(
            each.packed
            for each in around.own
            if not any(each in x for x in pods if x.version == each.version)
        )
        self._own_ports = PORTS_OF_A_NODE | _IPSEC | around.own_ports
        self._lent = frozenset(each.packed for each in around.lent)
        self._names_at = frozenset(each.packed for each in around.names_at)
        self._pods = frozenset(pods)
        self._is_other |= before != self._looked_at

    @property
    def _looked_at(self) -> tuple[object, ...]:
        own = self._own, self._own_ports, self._lent
        return *own, self._nodes, self._reached, self._names_at, self._pods

    def look(self, catalog: Catalog) -> Collection[ServiceName]:
        """Who has to be planned anew, since these addresses are others than before."""
        pieces = catalog.slices(*_API_SERVER)
        served = frozenset(
            (
                _packed(each.address for each in piece.endpoints),
                frozenset((port.protocol, port.port) for port in piece.ports),
            )
            for piece in pieces
        )
        is_other = self._is_other or served != self._served
        self.servers = frozenset(each for addresses, _ in served for each in addresses)
        self._served, self._is_other = served, False
        return self._outer.names if is_other else ()

    def note(self, name: ServiceName, service: Service | None) -> set[ServiceName]:
        """What the Service of that name asks for now. Others that have to be planned anew by it."""
        outer = elsewhere = frozenset[bytes]()
        if service is not None:
            exposure = service.exposure
            outer = _packed((*exposure.external_ips, *exposure.load_balancer_ips))
            elsewhere = _packed(service.addresses) if service.is_others else elsewhere
        self._outer.put(name, outer)
        return self.claimants(self._elsewhere.put(name, elsewhere))

    def claimants(self, addresses: Iterable[bytes]) -> set[ServiceName]:
        """Who asks for one of them as an outer one."""
        return {name for each in addresses for name in self._outer.of(each)}

    def sources(self, frontend: Frontend) -> tuple[str, ...]:
        """Prefixes of those who may ask there. Where the node has that address, its processes ask
        with it: they may if they might with another of the node's."""
        ranges, address = frontend.sources, frontend.address
        if ranges and address in self._own:
            own, found = map(ip_address, self._own), [*map(ip_network, ranges)]
            if any(each in x for each in own for x in found if x.version == each.version):
                return (*ranges, str(ip_address(address)))
        return ranges

    def refusal(self, address: bytes, protocol: str, port: int, *, is_external: bool) -> str:
        """Why no Service has that address and port, behind the address: `is a pod's …`; empty: one
        may. What a controller of load balancers says may be an address of a node, but for ports
        that a node needs: that of k3s says every node's address, at ports that tenants choose."""
        if names := self._elsewhere.of(address):
            return f"is {cluster_address_of(min(names))}"
        if is_external and address in self.servers:
            return "is an address of an API server, which no Service may have"
        if address in self.servers and any(
            address in addresses and (protocol, port) in ports for addresses, ports in self._served
        ):
            return "is where an API server answers, at that port"
        if is_external and address in self._names_at and port == _NAMES:
            return "is where this node answers for names, at that port"
        is_needed = any(of == protocol and a <= port <= b for of, a, b in self._own_ports)
        if address in self._own and (is_external or address not in self._lent):
            return f"is this node's, which needs port {port}/{protocol} itself" if is_needed else ""
        ports = self._reached.get(address)
        if ports is not None and (is_needed or (protocol == "UDP" and port in ports)):
            return f"is another node's address, which needs port {port}/{protocol} itself"
        if is_external and address in self._nodes:
            return "is another node's address: that node serves it, and no other does"
        found = ip_address(address)
        if is_external and any(found in x for x in self._pods if x.version == found.version):
            return "is an address of a pod, which no Service may have"
        return ""


class Hairpins:
    """Endpoints on this node: one that asks itself has to be asked by another address."""

    def __init__(self) -> None:
        self._pods: tuple[Prefix, ...] = ()
        self._prefixes: list[tuple[int, int, int]] = []
        """Bytes of an address, mask, network."""
        self._unplaced: set[ServiceName] = set()
        """Services with endpoints that do not say where they are."""
        self._is_other = False
        """This node's prefixes are others than when `look` was called last."""

    def put(self, around: Surroundings) -> None:
        if around.pods == self._pods:
            return
        self._pods, self._is_other = around.pods, True
        self._prefixes = [
            (len(each.network_address.packed), int(each.netmask), int(each.network_address))
            for each in around.pods
        ]

    def look(self) -> Collection[ServiceName]:
        """Who has to be planned anew, since this node's pods have other prefixes than before."""
        is_other, self._is_other = self._is_other, False
        return tuple(self._unplaced) if is_other else ()

    def forget(self, name: ServiceName) -> None:
        self._unplaced.discard(name)

    def addresses(self, name: ServiceName, choice: Choice) -> set[bytes]:
        """Packed, of those in rotation, which are all on this node that clients are led to. A slice
        that was made by hand, or mirrored, need not say where its endpoints are: those in prefixes
        of this node's pods are its pods then."""
        drawn = (*choice.rotation.near, *choice.rotation.local)
        found = {packed(each.address) for each in drawn if each.is_local}
        if unplaced := {packed(each.address) for each in drawn if not each.node}:
            self._unplaced.add(name)
            found |= {each for each in unplaced if self._is_pod(each)}
        return found

    def _is_pod(self, address: bytes) -> bool:
        number = int.from_bytes(address)
        return any(
            size == len(address) and number & mask == network
            for size, mask, network in self._prefixes
        )


class Around:
    """What this node and those around it have Services be planned by."""

    def __init__(self) -> None:
        self.reserved = Reserved()
        self.hairpins = Hairpins()

    def put(self, around: Surroundings) -> None:
        self.reserved.put(around)
        self.hairpins.put(around)

    def look(self, catalog: Catalog) -> Collection[ServiceName]:
        """Who has to be planned anew, since that is other than before."""
        return (*self.reserved.look(catalog), *self.hairpins.look())


class _Addresses:
    """Addresses of Services, and which Services have one."""

    def __init__(self) -> None:
        self._by_name: dict[ServiceName, frozenset[bytes]] = {}
        self._by_address: dict[bytes, set[ServiceName]] = {}

    @property
    def names(self) -> Collection[ServiceName]:
        return tuple(self._by_name)

    def of(self, address: bytes) -> Collection[ServiceName]:
        return self._by_address.get(address, ())

    def put(self, name: ServiceName, addresses: frozenset[bytes]) -> frozenset[bytes]:
        """In the place of those that it had. Those that are one's and not the other's."""
        before = self._by_name.pop(name, frozenset())
        for address in before - addresses:
            names = self._by_address[address]
            names.discard(name)
            if not names:
                del self._by_address[address]
        for address in addresses - before:
            self._by_address.setdefault(address, set()).add(name)
        if addresses:
            self._by_name[name] = addresses
        return before ^ addresses


def rank_of(frontend: Frontend, service: Service) -> Rank:
    """Between cluster addresses the names decide; a Service that says no time is the youngest."""
    since = (service.exposure.since or "~") if frontend.precedence else ""
    return frontend.precedence, since, service.key


def cluster_address_of(name: ServiceName) -> str:
    return f"the cluster address of {'/'.join(name)}"


def _packed(addresses: Iterable[str]) -> frozenset[bytes]:
    """Without what is no address: that is told when its Service is planned."""
    found = set()
    for each in addresses:
        with suppress(ValueError):
            found.add(packed(each))
    return frozenset(found)
