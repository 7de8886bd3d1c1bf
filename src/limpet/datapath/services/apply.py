"""The table of Services in the kernel."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from itertools import product

import structlog

from limpet.base.addresses import Address, InterfaceAddress, Prefix
from limpet.base.errors import KernelError, LimpetError
from limpet.base.ownership import NFT_SERVICES_SCRATCH_TABLE as _SCRATCH
from limpet.base.ownership import NFT_SERVICES_TABLE
from limpet.datapath.services.diff import (
    AddChains,
    Change,
    DropChains,
    ForgetFlows,
    PutElements,
    PutSurroundings,
    PutTable,
    diff_elements,
)
from limpet.datapath.services.elements import AskedByClients, read_frontend
from limpet.datapath.services.kube_proxy import IPVS_LINK
from limpet.datapath.services.ruleset import SURROUNDING, affinity_names
from limpet.datapath.services.state import (
    MAPS,
    PREFIX_SETS,
    PROTOCOLS,
    VERSIONS,
    Elements,
    ServicesState,
    StaleFlows,
)
from limpet.linux.conntrack import (
    FlowEnd,
    count_flows,
    forget_udp,
    forget_unanswered_tcp,
)
from limpet.linux.netlink.address_codec import IFA_F_PERMANENT, AddressInfo
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.nftables import Nftables
from limpet.linux.set_elements import Frame, SetElements
from limpet.linux.sysctl import read_sysctl

_log = structlog.get_logger("services")


class ServicesKernel:
    """In the network namespace of the calling thread."""

    def __init__(self) -> None:
        """Raises: LimpetError."""
        self._nft = Nftables(NFT_SERVICES_TABLE)
        self._sets = SetElements(NFT_SERVICES_TABLE)
        self._left: Frame | None = None
        """The table's chains as they were when all of it was as it should be."""
        self._base = self._surroundings = ""
        self._chains: dict[str, str] = {}
        self._elements: dict[str, dict[bytes, bytes]] = {name: {} for name in MAPS}
        self.own: frozenset[Address] = frozenset()
        """Addresses of the node at whatever link, as `look_at_addresses` found them."""
        self.lent: frozenset[Address] = frozenset()
        """Those of them that are a Service's, as `_lent` tells."""
        self.links: frozenset[Prefix] = frozenset()
        """Subnets that the node's links are in."""
        self.is_own_stale = True
        """They may be others by now."""

    def close(self) -> None:
        """The table stays."""
        self._nft.close()
        self._sets.close()

    @staticmethod
    def is_bridge_filtered() -> bool:
        return all(
            read_sysctl(f"net/bridge/bridge-nf-call-{name}") == "1"
            for name in ("iptables", "ip6tables")
        )

    def look_at_addresses(self) -> None:
        """Those that the node has, if they may be others: a VPN's and those of links that lead to
        no peer, too, but none that only says what kube-proxy serves. Raises: KernelError."""
        if not self.is_own_stale:
            return
        no_link = 0
        with suppress(OSError):
            no_link = socket.if_nametoindex(IPVS_LINK)
        with RouteSocket() as route:
            found = [each for each in route.addresses() if each.ifindex != no_link]
        self.own = frozenset(
            x for x in map(ip_address, {each.packed for each in found}) if not x.is_link_local
        )
        self.lent = _lent(found)
        networks = (each.interface.network for each in found)
        self.links = frozenset(x for x in networks if x.prefixlen < x.max_prefixlen)
        self.is_own_stale = False

    @property
    def state(self) -> ServicesState:
        """As it was read or put last."""
        return ServicesState(self._base, self._surroundings, self._chains, self._elements)

    def has_former(self) -> bool:
        """An earlier agent's table is there, and nothing of it is changed yet. Raises:
        KernelError."""
        return self._left is None and bool(self._frame())

    def read(self, want: ServicesState) -> None:
        """Looks at the kernel. Raises: KernelError."""
        frame = self._frame()
        if self._left is None and frame:
            self._adopt(frame, want)
        elif frame != self._left:
            self._base = ""
        if self._base:
            # Nearly all are as wanted; of 10,000 Services others take 17 MB, and stay.
            self._elements = {name: self._sets.read(name, want.elements[name]) for name in MAPS}

    def remove(self) -> bool:
        """Whether it was there, be it without all that it should have. Raises: KernelError."""
        table = f"table inet {NFT_SERVICES_TABLE}"
        try:
            self._nft.run(f"delete {table}", what=table)
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        self._base, self._left = "", None
        return True

    def apply(self, changes: Sequence[Change]) -> list[str]:
        """Tries every change; the failures, in words."""
        failures = []
        for change in changes:
            try:
                self._do(change)
            except LimpetError as error:
                self._base = ""  # whatever is there now is read before it is gone on with
                failures.append(str(error))
                break
        return failures

    # What an earlier agent left

    def _adopt(self, frame: Frame, want: ServicesState) -> None:
        """Goes on with a table that is just as this agent would make it, whatever its elements."""
        wanted = self._frame_of(self._whole(want.base, want.chains, want.surroundings))
        missing = {name for name in want.chains if name not in frame}
        others = {
            name
            for name, parts in wanted.items()
            if frame.get(name) != parts and name not in missing
        }
        if others <= SURROUNDING:
            # What it has beside that are chains that an earlier agent needed: they are dropped when
            # its elements are as wanted, and nothing leads there.
            self._base, self._surroundings = want.base, "" if others else want.surroundings
            self._chains = {name: "" for name in frame if name not in wanted}
            self._chains |= {k: text for k, text in want.chains.items() if k not in missing}
            self._left = frame
        else:
            _log.info(
                "rules of Services are others than an earlier agent left", which=sorted(others)
            )

    # Changing

    def _do(self, change: Change) -> None:
        match change:
            case PutTable():
                self._put_table(change)
            case PutSurroundings(text):
                self._nft.run(text, what="what surrounds Services")
                self._surroundings = text
                self._left = self._frame()
            case AddChains(chains):
                self._nft.run("".join(chains.values()), what="chains of Services")
                self._chains.update(chains)
                self._left = self._frame()
            case PutElements(delete, add):
                self._sets.change(delete, add)
                self._note(delete, add)
            case DropChains(names):
                table = f"inet {NFT_SERVICES_TABLE}"
                drops = (f"flush chain {table} {x}\ndelete chain {table} {x}\n" for x in names)
                self._nft.run("".join(drops), what="chains of Services")
                for name in names:
                    del self._chains[name]
                self._left = self._frame()
            case ForgetFlows(flows):
                if flows.left or flows.kept is not None:
                    self._forget_clients(flows)
                if flows.udp:
                    forget_udp(flows.udp)
                if flows.tcp:
                    forget_unanswered_tcp(flows.tcp)

    def _put_table(self, change: PutTable) -> None:
        whole = self._whole(change.base, change.chains, change.surroundings)
        self._left = self._frame()
        unused = self._lay_over(whole, change.elements) if self._left else None
        if unused is None:
            table = f"table inet {NFT_SERVICES_TABLE}"
            self._nft.run(f"add {table}\ndelete {table}\n{whole}", what=table)
            self._elements = {name: {} for name in MAPS}
        self._do(diff_elements(change.elements, self._elements, None))
        self._left = self._frame()
        self._base, self._surroundings = change.base, change.surroundings
        self._chains = dict(change.chains)
        if unused:
            self._chains.update(dict.fromkeys(unused, ""))
            self._do(DropChains(unused))

    def _lay_over(self, whole: str, wanted_elements: Elements) -> list[str] | None:
        """New rules around the elements that are there: no flow begins meanwhile that does not find
        its Service. Returns the chains that nothing leads to then; None: what is there is of
        another kind, and cannot stay."""
        try:
            wanted = self._frame_of(whole)
            self._nft.run(f"flush table inet {NFT_SERVICES_TABLE}\n{whole}", what="Services' rules")
            self._elements = {name: self._sets.read(name, wanted_elements[name]) for name in MAPS}
            there = self._frame()
        except KernelError as error:
            _log.info("the table of Services is made anew", cause=str(error))
            return None
        # A set of intervals that was flushed shows the end of none beside what it has.
        alike = wanted.keys() - SURROUNDING
        if any(there.get(name) != wanted[name] for name in alike):
            return None
        return [name for name in there if name not in wanted]

    def _frame_of(self, whole: str) -> Frame:
        """As the kernel would show that text. Raises: KernelError."""
        try:
            self._nft.run(
                f"add table inet {_SCRATCH}\ndelete table inet {_SCRATCH}\n"
                + whole.replace(NFT_SERVICES_TABLE, _SCRATCH),
                what="the table of Services, to compare",
            )
            return self._frame(_SCRATCH)
        finally:
            with suppress(KernelError):
                self._nft.run(f"delete table inet {_SCRATCH}", what=f"table {_SCRATCH}")

    def _note(
        self,
        delete: Mapping[str, Sequence[bytes]],
        add: Mapping[str, Sequence[tuple[bytes, bytes]]],
    ) -> None:
        for name, keys in delete.items():
            for key in keys:
                del self._elements[name][key]
        for name, elements in add.items():
            self._elements[name].update(elements)

    def _forget_clients(self, flows: StaleFlows) -> None:
        """Forgets clients of Services with affinity, whose endpoint is not one any more of what
        they ask for."""
        for version, protocol in product(VERSIONS, PROTOCOLS):
            names = affinity_names(version, protocol)
            left = {
                key: gone
                for (of, key), gone in flows.left.items()
                if of == version and read_frontend(key)[1] == protocol
            }
            if not left and flows.kept is None:
                continue
            noted, *ports = (self._sets.read(name) for name in names)
            known = (*self._elements[f"sticky{version}"], *left)
            clients = AskedByClients(version, protocol, known)
            gone = []
            for key, value in noted.items():
                for beside in ports:
                    value += beside.get(key, b"")[:2] + bytes(2)
                asked = clients.asked(key)
                is_left = value in left.get(asked, ())
                if flows.kept is not None:
                    is_left |= value not in flows.kept.get((version, asked), ())
                if is_left:
                    gone.append(key)
            self._sets.delete_there(names, gone)

    @staticmethod
    def _whole(base: str, chains: Mapping[str, str], surroundings: str) -> str:
        return base + "".join(chains.values()) + surroundings

    def _frame(self, table: str = NFT_SERVICES_TABLE) -> Frame:
        return self._sets.read_frame(table, PREFIX_SETS)


def count_connections(asked: Collection[FlowEnd]) -> Mapping[FlowEnd, int]:
    """Connections begun to one of `asked`, by the endpoint that answers. Raises: LimpetError."""
    return count_flows(asked)


def _lent(found: Iterable[AddressInfo]) -> frozenset[Address]:
    """Addresses by themselves that stand for good in the subnet of another one of their link: there
    kube-vip and keepalived put a Service's. A node's own by themselves are leases of DHCPv6, which
    end, or on `lo` and tunnels, where no subnet has them."""
    at_links: dict[int, list[InterfaceAddress]] = {}
    for each in found:
        at_links.setdefault(each.ifindex, []).append(each.interface)
    return frozenset(
        ip_address(each.packed)
        for each in found
        if each.flags & IFA_F_PERMANENT
        and each.prefix_length == each.interface.max_prefixlen
        and any(
            x.network.prefixlen < x.max_prefixlen and each.interface.ip in x.network
            for x in at_links[each.ifindex]
        )
    )
