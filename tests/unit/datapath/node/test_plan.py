"""What a node should hold, for the segments and the pods that it has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_interface, ip_network
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests import strategies as node
from tests.strategies import attachment

from limpet.base.addresses import Address
from limpet.base.node_state import NodeState, RoutedNetworks
from limpet.base.ownership import (
    DYING_IFNAME_PREFIX,
    POD_IFNAME_PREFIX,
    SEGMENT_METRIC,
    SHAPER_IFNAME_PREFIX,
    UNREACHABLE_METRIC,
)
from limpet.datapath.node.diff import MissingPort, PutRuleset, diff_node, route_key
from limpet.datapath.node.plan import (
    NodeFacts,
    bridge_mac,
    bridge_of_segments,
    derived_mac,
    host_ifname,
    host_mac,
    plan_node,
)
from limpet.datapath.node.pod.attachment import Attachment, BridgeSpec, HostPortMapping
from limpet.datapath.node.state import NodePlan, Route
from limpet.ipam.leases import Holder
from limpet.linux.netlink.codec import parse_mac

STATE = NodeState(
    segments=(ip_network("10.244.7.0/24"), ip_network("fd00:7::/64")),
    cluster_cidrs=(ip_network("10.244.0.0/16"), ip_network("fd00::/16")),
)
STARTED = NodeFacts(own_bridge_exists=True)
"""The node has had a pod on its segments before."""
specs = st.lists(node.bridge_specs, max_size=3)


def prefixes_in(plan: NodePlan, name: str) -> set[str]:
    """Elements of a set of the planned ruleset."""
    found = re.search(rf"\tset {name} {{([^}}]*?)(?:elements = {{ (.*?) }})?\n\t}}", plan.ruleset)
    assert found is not None, name
    return set(found[2].split(", ")) if found[2] else set()


def test_other_networks_behind_nodes_are_never_masqueraded_and_cut_off_where_asked() -> None:
    behind = RoutedNetworks(
        peers=(ip_network("10.1.0.0/16"), ip_network("10.20.0.0/16")),
        here=(ip_network("192.168.50.0/24"),),
        barriers=(ip_network("10.1.0.0/16"),),
    )
    plan = plan_node("limpet0", replace(STATE, behind=behind), [], (), STARTED)
    plain = plan_node("limpet0", STATE, [], (), STARTED)

    exempt = {"10.1.0.0/16", "10.20.0.0/16", "192.168.50.0/24"}
    assert prefixes_in(plan, "cluster4") == prefixes_in(plain, "cluster4") | exempt
    assert plan.routes - plain.routes == {
        Route(ip_network("10.1.0.0/16"), None, UNREACHABLE_METRIC)
    }
    assert plain.routes < plan.routes


@given(node.states, node.pods(), specs, st.randoms(use_true_random=False))
def test_the_order_of_pods_and_networks_does_not_matter(
    state: NodeState, pods: list[Attachment], specs: list[BridgeSpec], random: Random
) -> None:
    plan = plan_node("limpet0", state, pods, specs, STARTED)
    other_pods, other_specs = list(pods), list(specs)
    random.shuffle(other_pods)
    random.shuffle(other_specs)

    again = plan_node("limpet0", state, other_pods, other_specs, STARTED)

    assert again == plan
    assert list(again.sysctls) == list(plan.sysctls)


@given(node.states, node.pods(), node.bridge_specs)
def test_one_pod_more_on_a_known_network_changes_nothing_but_its_own_port(
    state: NodeState, pods: list[Attachment], network: BridgeSpec
) -> None:
    new = attachment("new", "10.244.1.9/24", bridge=network)

    changes = diff_node(
        plan_node("limpet0", state, [*pods, new], [network]),
        plan_node("limpet0", state, pods, [network]),
    )

    assert changes == [MissingPort(new.link.host_ifname)]


def test_a_pod_with_the_first_host_port_changes_the_ruleset_and_lets_127_0_0_1_in() -> None:
    new = attachment("new", "10.244.7.2/24", ports=(HostPortMapping(8080, 80, "tcp"),))
    before, plan = (
        plan_node("limpet0", STATE, [], (), STARTED),
        plan_node("limpet0", STATE, [new], (), STARTED),
    )
    changes = diff_node(plan, before)

    assert plan.sysctls["net/ipv4/conf/limpet0/route_localnet"] == "1"
    assert "net/ipv4/conf/limpet0/route_localnet" not in before.sysctls
    assert {type(change).__name__ for change in changes} == {
        "PutSysctl",
        PutRuleset.__name__,
        MissingPort.__name__,
    }


def test_127_0_0_1_is_guarded_wherever_a_bridge_lets_it_in() -> None:
    quiet = plan_node("limpet0", STATE, [], (), STARTED)
    opened = plan_node("limpet0", STATE, [], (), replace(STARTED, routes_localhost=True))

    assert "chain localhost" not in quiet.ruleset
    assert 'iifname "limpet0" ip daddr 127.0.0.0/8 drop' in opened.ruleset
    assert opened.sysctls == quiet.sysctls


@given(node.states, node.pods(), specs)
def test_pods_reach_every_prefix_of_the_node_with_their_own_address(
    state: NodeState, pods: list[Attachment], specs: list[BridgeSpec]
) -> None:
    plan = plan_node("limpet0", state, pods, specs, STARTED)
    exempt = [
        ip_network(text) for name in ("cluster4", "cluster6") for text in prefixes_in(plan, name)
    ]

    held = {
        gateway.network
        for spec in [*specs, *(pod.bridge for pod in pods if pod.bridge is not None)]
        for gateway in spec.gateways
    }
    for prefix in {*held, *state.segments, *state.cluster_cidrs}:
        assert any(
            prefix.version == other.version and prefix.subnet_of(other)  # type: ignore[arg-type]
            for other in exempt
        ), prefix


@given(node.states, specs)
def test_only_networks_that_ask_are_masqueraded(state: NodeState, specs: list[BridgeSpec]) -> None:
    plan = plan_node("limpet0", state, [], specs)
    asked = {prefix for spec in specs for prefix in spec.masquerade}
    found = {
        ip_network(text)
        for name in ("masquerade4", "masquerade6")
        for text in prefixes_in(plan, name)
    }

    for prefix in asked:
        assert any(
            prefix.version == other.version and prefix.subnet_of(other)  # type: ignore[arg-type]
            for other in found
        )
    assert sum(prefix.num_addresses for prefix in found) == sum(
        prefix.num_addresses for prefix in asked
    )


def test_two_networks_on_one_bridge_have_both_their_gateways_on_it() -> None:
    one = BridgeSpec("net1", (ip_interface("10.1.0.1/24"),))
    two = BridgeSpec("net1", (ip_interface("10.2.0.1/24"), ip_interface("fd02::1/64")))

    plan = plan_node("limpet0", NodeState(), [], [two, one])

    (bridge,) = plan.bridges.values()
    ours = {address for address in bridge.addresses if not address.is_link_local}
    assert ours == {*one.gateways, *two.gateways}
    assert bridge.mac == derived_mac(ip_interface("10.1.0.1/24").ip)
    assert {str(route.prefix) for route in plan.routes} == {
        "10.1.0.0/24",
        "10.2.0.0/24",
        "fd02::/64",
    }


@given(st.permutations([BridgeSpec("net1"), BridgeSpec("net1", promisc=True)]))
def test_a_bridge_is_promiscuous_if_one_of_its_networks_asks(specs: list[BridgeSpec]) -> None:
    assert plan_node("limpet0", NodeState(), [], specs).bridges["net1"].promisc


def test_the_segments_bridge_comes_with_their_first_pod_and_stays() -> None:
    pod = attachment("one", "10.244.7.2/24", bridge=bridge_of_segments("limpet0", STATE.segments))

    assert plan_node("limpet0", STATE, []).bridges == {}
    assert plan_node("limpet0", STATE, []).routes == frozenset()
    with_pod = plan_node("limpet0", STATE, [pod])
    assert with_pod.bridges.keys() == {"limpet0"}
    assert replace(with_pod, ports={}) == plan_node("limpet0", STATE, [], (), STARTED)


def test_the_bridge_holds_the_first_usable_address_of_each_segment() -> None:
    plan = plan_node("limpet0", STATE, [], (), STARTED)

    assert {str(address) for address in plan.bridges["limpet0"].addresses} == {
        "10.244.7.1/24",
        "fd00:7::1/64",
        "fe80::858:aff:fef4:701/64",  # of its MAC, as the kernel makes it
    }
    assert plan.bridges["limpet0"].mac == "0a:58:0a:f4:07:01"
    assert plan.bridges["limpet0"].ours


def test_a_bridge_that_another_made_is_told_from_ours() -> None:
    facts = NodeFacts(foreign_bridges=frozenset({"br0", "limpet0"}))
    plan = plan_node("limpet0", NodeState(), [], [BridgeSpec("br0"), BridgeSpec("br1")], facts)

    assert {bridge.ifname: bridge.ours for bridge in plan.bridges.values()} == {
        "br0": False,
        "br1": True,
    }


def test_nothing_is_planned_on_a_link_that_is_no_bridge() -> None:
    facts = NodeFacts(no_bridges={"br0": "it is a dummy link"})
    plan = plan_node(
        "limpet0", NodeState(), [], [BridgeSpec("br0", (ip_interface("10.1.0.1/24"),))], facts
    )

    assert plan == plan_node("limpet0", NodeState(), [])


def test_a_bridge_keeps_a_mac_that_one_of_its_gateways_gives_and_no_other() -> None:
    one, two = ip_interface("10.1.0.1/24"), ip_interface("10.2.0.1/24")
    macs = [derived_mac(gateway.ip) for gateway in (one, two)]

    assert bridge_mac("br0", [one, two]) == macs[0]
    assert bridge_mac("br0", [one, two], now=macs[1]) == macs[1]
    assert bridge_mac("br0", [one, two], now="02:00:00:00:00:09") == macs[0]


def test_a_node_without_segments_and_pods_is_left_alone() -> None:
    plan = plan_node("limpet0", NodeState(), [])

    assert plan == NodePlan(ruleset=plan.ruleset)


def test_pods_under_another_main_plugin_need_nothing_of_the_node() -> None:
    pod = replace(attachment("one", "10.244.7.2/24"), bridge=None)

    for facts in (NodeFacts(), STARTED):
        assert plan_node("limpet0", STATE, [pod], (), facts) == plan_node(
            "limpet0", STATE, [], (), facts
        )


@given(node.states, node.pods(), specs)
def test_cluster_traffic_without_a_path_ends_at_an_unreachable_route(
    state: NodeState, pods: list[Attachment], specs: list[BridgeSpec]
) -> None:
    plan = plan_node(
        "limpet0", state, pods, [*specs, bridge_of_segments("limpet0", state.segments)]
    )

    for cidr in state.cluster_cidrs:
        assert Route(cidr, None, UNREACHABLE_METRIC) in plan.routes
        assert any(rule.version == cidr.version for rule in plan.rules)
    assert len({route_key(route) for route in plan.routes}) == len(plan.routes)


@given(node.states, node.pods(), specs)
def test_every_route_has_a_metric_that_the_kernel_keeps(
    state: NodeState, pods: list[Attachment], specs: list[BridgeSpec]
) -> None:
    for route in plan_node("limpet0", state, pods, specs, STARTED).routes:
        assert route.metric in (SEGMENT_METRIC, UNREACHABLE_METRIC)
        if route.device is not None:
            assert route.source is not None
            assert route.source in route.prefix


def test_a_segment_as_large_as_the_cluster_is_reached_and_unreachable_only_without_it() -> None:
    whole = ip_network("10.244.0.0/16")
    plan = plan_node(
        "limpet0", NodeState(segments=(whole,), cluster_cidrs=(whole,)), [], (), STARTED
    )

    by_metric = sorted(plan.routes, key=lambda route: route.metric)
    assert [route.device for route in by_metric] == ["limpet0", None]


def test_forwarding_does_not_end_what_a_router_advertises() -> None:
    facts = replace(STARTED, listening_uplinks=frozenset({"wan0", "eth0"}))
    sysctls = plan_node("limpet0", STATE, [], (), facts).sysctls
    order = list(sysctls)

    for uplink in ("wan0", "eth0"):
        path = f"net/ipv6/conf/{uplink}/accept_ra"
        assert sysctls[path] == "2"
        assert order.index(path) < order.index("net/ipv6/conf/all/forwarding")
    assert sysctls["net/ipv6/conf/limpet0/accept_ra"] == "0"


def test_settings_of_a_family_without_pods_are_left_alone() -> None:
    only4 = plan_node(
        "limpet0", NodeState(segments=(ip_network("10.244.7.0/24"),)), [], (), STARTED
    )
    only6 = plan_node(
        "limpet0",
        NodeState(segments=(ip_network("fd00:7::/64"),)),
        [],
        (),
        replace(STARTED, listening_uplinks=frozenset({"eth0"})),
    )

    assert not [path for path in only4.sysctls if path.startswith("net/ipv6")]
    assert not [path for path in only6.sysctls if path.startswith("net/ipv4")]
    assert {rule.version for rule in only4.rules} == {4}


@given(node.states, node.pods(), specs)
def test_no_bridge_lets_a_pod_send_to_the_nodes_own_127_0_0_1(
    state: NodeState, pods: list[Attachment], specs: list[BridgeSpec]
) -> None:
    plan = plan_node("limpet0", state, pods, specs, STARTED, localhost_ports=True)
    opened = {path.split("/")[3] for path in plan.sysctls if path.endswith("/route_localnet")}
    closed = re.search(r"iifname (.*) ip daddr 127.0.0.0/8 drop", plan.ruleset)

    assert opened <= set(re.findall(r'"(.*?)"', closed[1] if closed else ""))


# Names and MACs.


@given(st.text(), st.text(), st.text())
def test_names_of_the_host_fit_the_kernel_and_say_what_they_are(
    network: str, container: str, ifname: str
) -> None:
    name = host_ifname(network, Holder(container, ifname))

    assert len(name) == 15
    assert name.isascii()
    assert name.startswith(POD_IFNAME_PREFIX)


def test_no_name_of_a_pods_host_end_is_one_of_another_kind() -> None:
    hexadecimal = set("0123456789abcdef")
    for prefix in (DYING_IFNAME_PREFIX, SHAPER_IFNAME_PREFIX):
        assert prefix.startswith(POD_IFNAME_PREFIX)
        assert prefix.removeprefix(POD_IFNAME_PREFIX)[0] not in hexadecimal


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), unique=True, min_size=2, max_size=2))
def test_two_interfaces_have_two_names(asked: list[tuple[str, str, str]]) -> None:
    if "\0" not in "".join(sum(asked, ())):
        assert len({host_ifname(each[0], Holder(*each[1:])) for each in asked}) == 2


@given(node.addresses | node.texts)
def test_a_derived_mac_is_unicast_and_locally_administered(source: Address | str) -> None:
    for mac in (derived_mac(source), host_mac(str(source))):
        assert parse_mac(mac)[0] & 0b11 == 0b10
    assert derived_mac(source) == derived_mac(source)
    assert derived_mac(source) != host_mac(str(source))


@given(st.sets(node.v4_addresses, min_size=2, max_size=2))
def test_two_ipv4_addresses_never_share_a_mac(pair: Iterable[Address]) -> None:
    assert len({derived_mac(address) for address in pair}) == 2


def test_a_bridge_without_addresses_has_its_mac_from_its_name() -> None:
    assert bridge_mac("br0", ()) == bridge_mac("br0", ())
    assert bridge_mac("br0", ()) != bridge_mac("br1", ())


def test_segments_are_masqueraded_when_their_network_asks() -> None:
    assert (
        bridge_of_segments("limpet0", STATE.segments, masquerade=True).masquerade == STATE.segments
    )
    assert bridge_of_segments("limpet0", STATE.segments).masquerade == ()
