"""From the slots of a Service's address to the elements of the programs' maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from limpet.datapath.services.elements import slot_keys
from limpet.datapath.services.sockets import layout
from limpet.services.values import Service, ServiceName, ServicePort

Held = Mapping[str, Collection[bytes]]
"""Keys by the map's name."""
SIZES = {layout.FRONTENDS: 1 << 16, layout.SLOTS: 1 << 18, layout.MEMBERS: 1 << 18}
"""Elements that the maps take. Source: max_entries in bpf/services.bpf.c."""
_SPARE_PART, _PART_OF_ONE, _FREED_PART = 8, 2, 16
"""Parts of these sizes: what is left free, since in a round what comes is there before what goes;
what one namespace has at most; and what has to be free again before Services that found no room are
planned anew."""
PROTOCOLS = ("TCP", "UDP")
"""The kernel calls no program when a socket of SCTP connects. Source: net/sctp/socket.c."""


class SocketPlan:
    """What programs look up, of each Service whose elements find room in their maps. A full map
    would cost all Services the programs, so the others are left to nftables, which serves them as
    well."""

    def __init__(self, ends_flows: bool | None) -> None:
        """`ends_flows`: sockets of UDP can be ended; None: no program is asked for."""
        self._ends_flows = ends_flows
        self._used = Counter[str]()
        """By the map's name."""
        self._of_namespaces = Counter[tuple[str, str]]()
        """By namespace and the map's name."""
        self._freed = Counter[str]()
        """What went, and nothing came in its place, since `waiting` told somebody."""
        self.left: set[ServiceName] = set()
        """Services that found no room for all of theirs."""

    @property
    def is_asked(self) -> bool:
        return self._ends_flows is not None

    def elements(
        self,
        key: bytes,
        slots: Sequence[bytes],
        members: Collection[bytes],
        service: Service,
        port: ServicePort,
        *,
        beside: Held,
    ) -> dict[str, dict[bytes, bytes]]:
        """Elements by map; none where it is left to nftables: also to refuse.

        `key`, `slots`: as nftables gets them. `members`: who may be asked on, in a slot or not.
        `beside`: what else the Service will have.
        """
        if not slots or port.protocol not in PROTOCOLS:
            return {}
        asked = layout.service(key)
        targets = [layout.target(each) for each in slots]
        is_udp = port.protocol == "UDP"
        frontend = layout.frontend(
            targets, service.affinity_s, not_connected=is_udp and not self._ends_flows
        )
        found = {layout.FRONTENDS: {asked: frontend}}
        if len(targets) > layout.FEW:
            found[layout.SLOTS] = dict(zip(slot_keys(asked, 0, len(targets)), targets, strict=True))
        if is_udp or service.affinity_s:
            may_be_asked = {*targets, *map(layout.target, members)}
            found[layout.MEMBERS] = dict.fromkeys(map(asked.__add__, may_be_asked), layout.MEMBER)
        return found if self._has_room(service.key, found, beside) else {}

    def _has_room(self, name: ServiceName, found: Held, beside: Held) -> bool:
        for map_name, keys in found.items():
            size, of_it = SIZES[map_name], (name[0], map_name)
            more = len(keys) + len(beside.get(map_name, ()))
            if (
                self._used[map_name] + more > size - size // _SPARE_PART
                or self._of_namespaces[of_it] + more > size // _PART_OF_ONE
            ):
                self.left.add(name)
                return False
        return True

    def change(self, name: ServiceName, held: Held, sign: int) -> None:
        """It has that from now on (1), or has it no more (-1)."""
        for map_name in SIZES:
            if count := sign * len(held.get(map_name, ())):
                self._used[map_name] += count
                self._of_namespaces[name[0], map_name] += count
                self._freed[map_name] = max(self._freed[map_name] - count, 0)
                if not self._of_namespaces[name[0], map_name]:
                    del self._of_namespaces[name[0], map_name]

    def waiting(self) -> Iterable[ServiceName]:
        """Who may find room by now."""
        if not self.left or all(self._freed[x] < SIZES[x] // _FREED_PART for x in SIZES):
            return ()
        self._freed.clear()
        return sorted(self.left)
