"""Two ends of a tunnel that begin to talk at one moment: each answers the other's initiation, both
refuse that answer, and WireGuard tries again after five seconds, with traffic again at one moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beds.namespaces import Netns
from tests.datapath.tunnel.site_tunnel_bed import Agent, SiteTunnelBed, look, say
from tests.waiting import wait_until

INITIATION, RESPONSE, UDP_HEADER = 148, 92, 8


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[SiteTunnelBed]:
    made = SiteTunnelBed(tmp_path)
    with made.undo:
        yield made


def has_session(one: Agent, other: Agent) -> bool:
    reading = one.reading(other)
    return reading is not None and bool(reading.last_handshake_ns)


def has_begun(one: Agent, other: Agent) -> bool:
    reading = one.reading(other)
    return reading is not None and reading.sent_bytes >= INITIATION


def have_crossed(one: Agent, other: Agent) -> bool:
    """Both ends have sent an initiation, and heard the other's."""
    return all(
        reading is not None
        and reading.received_bytes >= INITIATION
        and reading.sent_bytes >= INITIATION + RESPONSE
        for reading in (one.reading(other), other.reading(one))
    )


def mac_of(netns: Netns, ifname: str) -> str:
    return netns.run("ip", "-br", "link", "show", "dev", ifname).split()[2]


def hold(bed: SiteTunnelBed) -> None:
    """The router keeps what it has for the sites until `release`: whom it has no MAC of, and does
    not ask for one (`__neigh_update` sets no timer), it queues for without an end."""
    gateways = [mac_of(bed.middle, f"port{node.number}") for node in bed.nodes]
    for node, mac in zip(bed.nodes, gateways, strict=True):
        # It learns MACs of those that ask it for its own.
        gateway = f"172.20.{node.number}.254"
        node.netns.ip(f"neigh replace {gateway} lladdr {mac} dev eth0 nud permanent")
        bed.middle.ip(f"neigh replace {bed.underlay(node, 4)} dev port{node.number} nud incomplete")


def release(bed: SiteTunnelBed) -> None:
    for node in bed.nodes:
        mac = mac_of(node.netns, "eth0")
        target = f"{bed.underlay(node, 4)} lladdr {mac} dev port{node.number}"
        bed.middle.ip(f"neigh replace {target} nud permanent")


def test_the_end_with_the_lower_key_begins_anew_and_need_not_wait(bed: SiteTunnelBed) -> None:
    first, second = sorted(
        bed.agents, key=lambda each: each.peer_parts.tunnels.wireguard.key.public_key
    )
    answers = f"udp length {RESPONSE + UDP_HEADER}"
    bed.middle.run(
        "nft", "add table inet lost { chain forward { type filter hook forward priority 0; }; }"
    )
    bed.middle.run("nft", f"add rule inet lost forward {answers} drop")
    for agent in bed.agents:
        agent.do(agent.peer_parts.watch.stop)  # only this test looks
    hold(bed)
    bed.join_all()
    say(first, second)
    say(second, first)
    wait_until(lambda: has_begun(first, second) and has_begun(second, first))
    release(bed)

    wait_until(lambda: have_crossed(first, second), "both ends have begun")
    assert not has_session(first, second)
    assert not has_session(second, first)
    before = sent_bytes(first, second), sent_bytes(second, first)
    for agent in bed.agents:
        look(agent)

    look(second, after_s=2)
    look(first, after_s=2)

    wait_until(lambda: sent_bytes(first, second) < before[0], "it is made anew, and counts anew")
    bed.middle.run("nft", "delete table inet lost")
    wait_until(lambda: has_session(first, second))
    wait_until(lambda: has_session(second, first))
    assert sent_bytes(second, first) > before[1]


def sent_bytes(one: Agent, other: Agent) -> int:
    reading = one.reading(other)
    assert reading is not None
    return reading.sent_bytes
