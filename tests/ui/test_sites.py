"""The page of nodes behind NATs: the pair that only a relay carries, and a real Service whose
endpoint dies with its node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Locator, expect

from limpet.lab.world.world import World
from tests.lab.bed import a_world
from tests.lab.rungs import CLIMBS_WITHIN_S
from tests.lab.services import ADDRESS, NAME, TARGET_PORT, ipv4, tell, web
from tests.ui.conftest import Links, SignIn, links_of
from tests.ui.turning import TRIES, TURNS_S, cut, row_of, turned_s
from tests.waiting import wait_until

# Addresses of its own, as in tests/lab/sites/test_services.py.
TOPOLOGY = """
[controller]
pod_cidrs = ["10.236.0.0/16", "fd00:236::/48"]
[cloud]
addresses = ["203.0.113.10/24"]
nodes = { hub = 1 }
relays = ["hub"]
[site.quarry]
lan = ["192.168.1.0/24"]
nat = "port-restricted"
nodes = { digger-1 = 1, digger-2 = 1 }
[site.mast]
lan = ["192.168.30.0/24"]
nat = "symmetric"
nodes = { radio-1 = 1 }
[site.elsewhere]
lan = ["198.51.100.0/24"]
nodes = { buoy = 0 }
relays = ["buoy"]
"""
"""Two relays, since what is told of a NAT is how it maps for the one and for the other."""
NODES = ("digger-1", "radio-1")
TUNNEL_MTU_BYTES = 1440


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("sites")) as world:
        yield world


@pytest.fixture(scope="module")
def links(world: World) -> Iterator[dict[str, Links]]:
    """Of the pages of these nodes."""
    with ExitStack() as serving:
        yield {name: serving.enter_context(links_of(world.machine(name))) for name in NODES}


def told(direction: Locator, what: str) -> Locator:
    """What the list of a direction says of that."""
    row = direction.locator("dl.about div").filter(has_text=re.compile(f"^{what}"))
    return row.locator("dd")


@pytest.mark.parametrize(
    ("here", "there", "nat"),
    [("digger-1", "radio-1", "same"), ("radio-1", "digger-1", "symmetric")],
)
def test_a_pair_that_a_relay_carries_says_by_which_nats_and_what_would_mend_it(
    world: World, links: dict[str, Links], sign_in: SignIn, here: str, there: str, nat: str
) -> None:
    public = world.gateway(world.machine(here).site.name).public
    seen = sign_in(links[here].next())
    home = seen.url.rstrip("/")
    direction = seen.get_by_role("region", name=f"From {here} to {there}")

    def is_explained() -> bool:
        seen.goto(f"{home}/pairs/{here}/{there}")
        said = direction.inner_text()
        return "Why not direct:" in said and "unknown" not in told(direction, "NAT of").inner_text()

    wait_until(is_explained, "it is on a relay, and why", patience_s=CLIMBS_WITHIN_S)
    expect(direction.locator(".big")).to_contain_text(re.compile("by (hub|buoy)"))
    expect(told(direction, "MTU")).to_have_text(f"{TUNNEL_MTU_BYTES} bytes")
    expect(told(direction, "NAT of")).to_have_text(nat)
    outside = told(direction, "Seen from outside at")
    if nat == "symmetric":  # each sees another port, so none is told
        expect(outside).to_have_count(0)
    else:
        expect(outside).to_contain_text(f"{public}:")
    mend = direction.locator(".mend")
    expect(mend).to_contain_text("forward the UDP port of either node's tunnel to it")
    expect(mend).to_contain_text("a public address")


@pytest.mark.parametrize(
    ("peer", "site", "way"), [("buoy", "elsewhere", "tunnel"), ("radio-1", "mast", "relay")]
)
def test_a_way_that_leads_out_of_the_site_and_dies_turns(
    world: World, links: dict[str, Links], sign_in: SignIn, peer: str, site: str, way: str
) -> None:
    digger = world.machine("digger-1")
    seen = sign_in(links["digger-1"].next())
    seen.goto(seen.url.rstrip("/") + "/pairs")
    row = row_of(seen, "digger-1", peer)

    def is_well() -> bool:
        said = row.inner_text() if row.count() else ""
        return way in said and "lost" not in said

    took_s: list[float] = []
    while len(took_s) < TRIES and min(took_s, default=TURNS_S) >= TURNS_S:
        wait_until(is_well, f"{peer} is reached by a {way}", patience_s=CLIMBS_WITHIN_S)
        programs = [digger.agent_pid, links["digger-1"].pid]
        with cut(world, site) as cutting:
            took_s.append(turned_s(seen, digger, peer, programs, cutting))

    assert min(took_s) < TURNS_S


def test_a_service_is_shown_and_an_endpoint_leaves_the_rotation_with_its_node(
    world: World, links: dict[str, Links], sign_in: SignIn
) -> None:
    """After those before: the agent begins anew, as one that is told of Services by Kubernetes."""
    looks, dies, far = (world.machine(each) for each in ("digger-1", "digger-2", "radio-1"))
    pods = [(each, next(iter(each.pods.values()))) for each in (dies, far)]
    tell(looks, web(*pods, distribution="Even"))
    seen = sign_in(links["digger-1"].next())
    seen.goto(seen.url.rstrip("/") + "/services")
    card = seen.get_by_role("region", name=NAME)
    end, other = (
        card.locator(".endpoints li").filter(has_text=f"{ipv4(pod)}:{TARGET_PORT}")
        for _, pod in pods
    )

    def is_drawn(count: int, state: str) -> bool:
        seen.reload()
        shown = f"{count} of 2 endpoints in rotation" in card.inner_text()
        return shown and end.locator(".state").inner_text() == state

    wait_until(lambda: is_drawn(2, "in"), "both serve")
    expect(card).to_contain_text(ADDRESS)
    for (machine, pod), shown in zip(pods, (end, other), strict=True):
        expect(shown).to_contain_text(f"{pod.name} on {machine.label}")
        expect(shown.get_by_role("link", name=machine.label)).to_be_visible()

    dies.power_off()
    wait_until(lambda: is_drawn(1, "out"), "that of the node that died serves no more")
    expect(end).to_contain_text("node digger-2 does not answer")
    expect(other.locator(".state")).to_have_text("in")

    dies.power_on()
    wait_until(lambda: is_drawn(2, "in"), "it serves again")
    expect(end).not_to_contain_text("does not answer")
