"""The changes from what is to what should be, against a node made of a few dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import Self

from hypothesis import example, given
from tests.strategies import node_plans

from limpet.datapath.change import Drop, LinkAddress, Put
from limpet.datapath.node.diff import (
    Change,
    MissingPort,
    PutRuleset,
    PutSysctl,
    diff_node,
    route_key,
)
from limpet.datapath.node.state import Bridge, NodePlan, Port, Route, Rule

wanted = node_plans(wanted=True)
found = node_plans(wanted=False)
GATEWAY = ip_interface("10.244.7.1/24")
OTHER = ip_interface("192.168.9.1/24")
MAC = "0a:58:0a:f4:07:01"


@dataclass
class TinyNode:
    """A kernel of dictionaries: as strict as the real one about what must be there before."""

    bridges: dict[str, Bridge]
    ports: dict[str, Port]
    routes: dict[tuple[int, ...], Route]
    rules: set[Rule]
    sysctls: dict[str, str]
    ruleset: str

    @classmethod
    def holding(cls, have: NodePlan) -> Self:
        return cls(
            dict(have.bridges),
            dict(have.ports),
            {route_key(route): route for route in have.routes},
            set(have.rules),
            dict(have.sysctls),
            have.ruleset,
        )

    def observe(self) -> NodePlan:
        return NodePlan(
            dict(self.bridges),
            dict(self.ports),
            frozenset(self.routes.values()),
            frozenset(self.rules),
            dict(self.sysctls),
            self.ruleset,
        )

    def apply(self, change: Change) -> None:
        match change:
            case PutSysctl(path, value):
                self.sysctls[path] = value
            case Put(Bridge() as bridge):
                before = self.bridges.get(bridge.ifname, replace(bridge, addresses=frozenset()))
                self.bridges[bridge.ifname] = replace(
                    before,
                    mac=bridge.mac if bridge.ours else before.mac,
                    promisc=before.promisc or bridge.promisc,
                    up=True,
                )
            case Put(LinkAddress(ifname, address)):
                bridge = self.bridges[ifname]
                self.bridges[ifname] = replace(bridge, addresses=bridge.addresses | {address})
            case Drop(LinkAddress(ifname, address)):
                bridge = self.bridges[ifname]
                assert address in bridge.addresses
                self.bridges[ifname] = replace(bridge, addresses=bridge.addresses - {address})
            case Put(Route() as route):
                self.routes[route_key(route)] = route
            case Drop(Route() as route):
                assert self.routes.pop(route_key(route)) == route
            case Put(Rule() as rule):
                assert rule not in self.rules
                self.rules.add(rule)
            case Drop(Rule() as rule):
                self.rules.remove(rule)
            case Put(Port() as port):
                assert port.ifname in self.ports
                self.ports[port.ifname] = port
            case Drop(Port(ifname)):
                del self.ports[ifname]
            case PutRuleset(text):
                self.ruleset = text
            case MissingPort():
                raise AssertionError("the agent makes the pod's interface anew")


def applied(want: NodePlan, have: NodePlan) -> tuple[TinyNode, list[Change]]:
    """The node after a round, and the round's changes."""
    node = TinyNode.holding(have)
    changes = diff_node(want, have)
    for change in changes:
        if isinstance(change, MissingPort):
            node.ports[change.ifname] = want.ports[change.ifname]
        else:
            node.apply(change)
    return node, changes


@given(wanted, found)
def test_applying_the_diff_reaches_the_wanted_state(want: NodePlan, have: NodePlan) -> None:
    node, _ = applied(want, have)

    assert diff_node(want, node.observe()) == []
    assert set(node.routes.values()) == want.routes
    assert node.rules == want.rules
    assert node.ports == want.ports
    assert node.ruleset == want.ruleset
    assert node.sysctls.items() >= want.sysctls.items()
    for ifname, bridge in want.bridges.items():
        assert node.bridges[ifname].up
        assert node.bridges[ifname].addresses >= bridge.addresses
        if bridge.ours:
            assert node.bridges[ifname].addresses == bridge.addresses
            assert node.bridges[ifname].mac == bridge.mac


@given(wanted)
def test_nothing_changes_where_all_is_as_wanted(want: NodePlan) -> None:
    assert diff_node(want, want) == []


@given(wanted, found)
def test_the_changes_do_not_depend_on_the_order_of_dictionaries(
    want: NodePlan, have: NodePlan
) -> None:
    def turned(plan: NodePlan) -> NodePlan:
        return replace(
            plan,
            bridges=dict(reversed(list(plan.bridges.items()))),
            ports=dict(reversed(list(plan.ports.items()))),
        )

    assert diff_node(turned(want), turned(have)) == diff_node(want, have)


@given(wanted, found)
def test_what_adds_reach_comes_before_what_removes_it(want: NodePlan, have: NodePlan) -> None:
    removals = [isinstance(change, Drop) for change in diff_node(want, have)]

    assert removals == sorted(removals)


@given(wanted, found)
def test_a_prefix_that_has_a_route_before_and_after_has_one_all_the_time(
    want: NodePlan, have: NodePlan
) -> None:
    node = TinyNode.holding(have)
    always = {route.prefix for route in want.routes} & {route.prefix for route in have.routes}
    for change in diff_node(want, have):
        if not isinstance(change, MissingPort):
            node.apply(change)
        assert always <= {route.prefix for route in node.routes.values()}


@given(wanted, found)
def test_only_what_was_found_is_dropped_and_only_what_is_wanted_is_put(
    want: NodePlan, have: NodePlan
) -> None:
    for change in diff_node(want, have):
        match change:
            case Put(Route() as route):
                assert route in want.routes
            case Drop(Route() as route):
                assert route in have.routes - want.routes
            case Put(Rule() as rule):
                assert rule in want.rules
            case Drop(Rule() as rule):
                assert rule in have.rules - want.rules
            case Drop(Port(ifname)):
                assert ifname in have.ports.keys() - want.ports.keys()
            case PutSysctl(path, value):
                assert want.sysctls[path] == value != have.sysctls.get(path)
            case Put(LinkAddress(ifname, address)):
                assert address in want.bridges[ifname].addresses


@given(wanted, found)
def test_an_address_on_a_bridge_that_another_made_is_never_dropped(
    want: NodePlan, have: NodePlan
) -> None:
    for change in diff_node(want, have):
        if isinstance(change, Drop) and isinstance(change.what, LinkAddress):
            bridge = want.bridges[change.what.ifname]
            assert bridge.ours
            assert change.what.address not in bridge.addresses


def bridge(*addresses: object, ours: bool = True, mac: str = MAC, up: bool = True) -> NodePlan:
    held = frozenset(ip_interface(str(address)) for address in addresses)
    return NodePlan(bridges={"limpet0": Bridge("limpet0", mac, held, ours=ours, up=up)})


def test_a_bridge_is_made_before_its_addresses_and_its_routes() -> None:
    want = replace(
        bridge(GATEWAY),
        routes=frozenset({Route(GATEWAY.network, "limpet0", 100, GATEWAY.ip)}),
        rules=frozenset({Rule(4)}),
        sysctls={"net/ipv4/conf/limpet0/send_redirects": "0"},
        ruleset="table inet limpet {}\n",
    )

    changes = diff_node(want, NodePlan())

    kinds = [type(each.what if isinstance(each, Put) else each) for each in changes]
    assert kinds == [Bridge, PutRuleset, PutSysctl, LinkAddress, Route, Rule]


def test_our_own_bridge_gets_its_mac_back_and_anothers_keeps_its_own() -> None:
    other = "02:00:00:00:00:01"

    assert diff_node(bridge(GATEWAY), bridge(GATEWAY, mac=other)) == [
        Put(Bridge("limpet0", MAC, frozenset({GATEWAY})))
    ]
    assert diff_node(bridge(GATEWAY, ours=False), bridge(GATEWAY, mac=other)) == []


def test_a_bridge_that_is_down_is_set_up_whoever_made_it() -> None:
    for ours in (True, False):
        (change,) = diff_node(bridge(GATEWAY, ours=ours), bridge(GATEWAY, ours=ours, up=False))
        assert isinstance(change, Put)
        assert isinstance(change.what, Bridge)


def test_an_old_address_goes_from_our_bridge_after_the_new_one_is_there() -> None:
    assert diff_node(bridge(GATEWAY), bridge(OTHER)) == [
        Put(LinkAddress("limpet0", GATEWAY)),
        Drop(LinkAddress("limpet0", OTHER)),
    ]
    assert diff_node(bridge(GATEWAY, ours=False), bridge(OTHER)) == [
        Put(LinkAddress("limpet0", GATEWAY))
    ]


def test_a_bridge_of_ours_that_nobody_wants_now_is_left_for_uninstall() -> None:
    assert diff_node(NodePlan(), bridge(GATEWAY)) == []


def test_a_route_that_differs_only_by_its_device_is_put_without_a_removal() -> None:
    old, new = (Route(GATEWAY.network, device, 100) for device in ("net1", "limpet0"))

    assert diff_node(NodePlan(routes=frozenset({new})), NodePlan(routes=frozenset({old}))) == [
        Put(new)
    ]


def test_a_route_with_another_metric_is_another_route() -> None:
    old, new = (Route(GATEWAY.network, "limpet0", metric) for metric in (100, 200))

    assert diff_node(NodePlan(routes=frozenset({new})), NodePlan(routes=frozenset({old}))) == [
        Put(new),
        Drop(old),
    ]


@example(Port("lim1", "limpet0", up=False))
@example(Port("lim1", ""))
@example(Port("lim1", "limpet0", hairpin=True))
@example(Port("lim1", "limpet0", isolated=True))
@given(found.map(lambda plan: next(iter(plan.ports.values()), Port("lim1", "net1"))))
def test_a_port_that_is_not_as_wanted_is_put_right_and_never_made_anew(port: Port) -> None:
    want = Port(port.ifname, "limpet0")
    changes = diff_node(NodePlan(ports={port.ifname: want}), NodePlan(ports={port.ifname: port}))

    assert changes == ([] if port == want else [Put(want)])


def test_ipv4_and_ipv6_sort_together() -> None:
    routes = frozenset(
        Route(prefix, "limpet0", 100, ip_address(str(prefix[1])))
        for prefix in (ip_network("fd00:7::/64"), ip_network("10.244.7.0/24"))
    )
    changes = diff_node(NodePlan(routes=routes), NodePlan())

    found = [each.what for each in changes if isinstance(each, Put)]
    assert [str(each.prefix) for each in found if isinstance(each, Route)] == [
        "10.244.7.0/24",
        "fd00:7::/64",
    ]
