"""What is behind a peer: networks of others that its node leads to."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

from tests.unit.datapath.overlay.overlay_values import OWN, node, part, segments, uid, view, vxlan

from limpet.datapath.overlay.plan import plan_overlay


def test_what_is_behind_a_peer_goes_its_way_after_every_segment() -> None:
    behind = ip_network("10.20.0.0/16")
    planned = part(node(2, prefixes_behind=(behind,)), vxlan(2))

    route = planned.routes[-1]
    assert (route.prefix, route.metric, str(route.next_hop)) == (behind, 300, "10.244.2.0")
    assert set(planned.sources) == {*segments(2), behind}


def test_what_lies_behind_a_peer_never_takes_the_nodes_own_links() -> None:
    own = replace(OWN, link_prefixes=(ip_network("192.168.1.0/24"),))
    behind = (ip_network("192.168.0.0/16"), ip_network("192.0.2.0/24"), ip_network("10.9.0.0/16"))
    planned = part(node(2, prefixes_behind=behind), vxlan(2), own)

    assert [str(route.prefix) for route in planned.routes if route.metric == 300] == ["10.9.0.0/16"]
    assert planned.without == (
        (behind[0], "overlaps the subnet of a link of this node, 192.168.1.0/24"),
        (behind[1], "the peer's own address on the underlay lies in it"),
    )
    assert behind[0] not in planned.sources


def test_what_lies_behind_a_peer_takes_no_network_of_a_link_that_leads_to_no_peer() -> None:
    """As the LAN of the machines that are controlled, or a VPN: our routes come before its own."""
    own = replace(OWN, networks=(ip_network("192.0.2.0/24"), ip_network("192.168.50.0/24")))
    behind = (ip_network("192.168.50.0/24"), ip_network("10.9.0.0/16"))
    planned = part(node(2, prefixes_behind=behind), vxlan(2), own)

    assert [str(route.prefix) for route in planned.routes if route.metric == 300] == ["10.9.0.0/16"]
    words = "overlaps the subnet of a link of this node, 192.168.50.0/24"
    assert planned.without == ((behind[0], words),)
    assert behind[0] not in planned.sources


def test_a_prefix_behind_two_nodes_is_that_of_the_newer_grant() -> None:
    # As no controller does; a node that was cut off may know one grant from before, though.
    behind = (ip_network("10.20.0.0/16"),)
    for revisions, holder in (((2, 1), uid(2)), ((1, 2), uid(3)), ((1, 1), None)):
        nodes = [
            node(number, prefixes_behind=behind, revision=revision)
            for number, revision in zip((2, 3), revisions, strict=True)
        ]
        planned = plan_overlay(view(*nodes, paths={uid(2): vxlan(2), uid(3): vxlan(3)}))

        holders = [
            each
            for each, part in planned.parts.items()
            if any(route.prefix == behind[0] for route in part.routes)
        ]
        assert holders == ([holder] if holder else [])
