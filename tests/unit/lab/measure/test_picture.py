"""What the picture of a world shows."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.lab.measure.paths import SeenPath
from limpet.lab.measure.picture import draw
from limpet.lab.topology import Topology, load_topology, parse_topology, topology_names

SVG = "{http://www.w3.org/2000/svg}"
RUNGS = ("route", "vxlan", "tunnel", "relay", "relay-tls", "")


def read(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def groups(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [each for each in root.iter(f"{SVG}g") if each.get("class") == kind]


def names_of(topology: Topology) -> list[str]:
    return [node.name for _, node in topology.nodes]


def all_paths(topology: Topology, rung: str = "tunnel") -> list[SeenPath]:
    return [
        SeenPath(one, other, rung, "", "", "") for one, other in permutations(names_of(topology), 2)
    ]


@pytest.mark.parametrize("name", topology_names())
def test_each_node_and_each_pair_is_there_once(name: str) -> None:
    topology = load_topology(name)

    root = read(draw(topology, all_paths(topology)))

    names = names_of(topology)
    assert sorted(str(each.get("data-name")) for each in groups(root, "node")) == sorted(names)
    drawn = [
        frozenset((each.get("data-from"), each.get("data-to"))) for each in groups(root, "pair")
    ]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == set(map(frozenset, combinations(names, 2)))
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {site.name for site in topology.sites} | {"cloud"} <= words


def test_sites_are_shown_with_their_nats_and_relays_as_such() -> None:
    root = read(draw(load_topology("nated"), []))

    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {"cone NAT", "port-restricted NAT", "symmetric NAT", "no NAT"} <= words
    assert {"hub (relay)", "buoy (relay)", "crane-1"} <= words


def test_a_pair_has_the_colours_of_both_directions_and_says_by_which_relay() -> None:
    paths = [
        SeenPath("radio-1", "digger-1", "relay", "203.0.113.11:21000", "hub", ""),
        SeenPath("digger-1", "radio-1", "", "", "", "no path <to it> is proven"),
    ]

    root = read(draw(load_topology("nated"), paths))

    (pair,) = groups(root, "pair")
    one, other = (path.get("stroke") for path in pair.iter(f"{SVG}path"))
    assert one != other
    assert {pair.get("data-from"), pair.get("data-to")} == {"radio-1", "digger-1"}
    assert set(str(pair.get("data-rungs")).split()) == {"relay", "none"}
    title = pair.find(f"{SVG}title")
    assert title is not None
    assert "radio-1 to digger-1: relay 203.0.113.11:21000 by hub" in str(title.text)
    assert "digger-1 to radio-1: no way (no path <to it> is proven)" in str(title.text)


def test_the_legend_counts_the_paths_of_each_rung() -> None:
    topology = load_topology("one-lan")
    paths = [*all_paths(topology, "route")[:4], *all_paths(topology, "relay-tls")[4:]]

    (legend,) = groups(read(draw(topology, paths)), "legend")

    words = [text.text for text in legend.iter(f"{SVG}text")]
    assert {"route: 4", "relay-tls: 2", "tunnel: 0", "no way: 0"} <= set(words)


def numbers(element: ElementTree.Element) -> tuple[float, float, float, float]:
    x, y, width, height = (float(element.get(key, "")) for key in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


@given(
    sites=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    rung=st.sampled_from((*RUNGS, "one of tomorrow")),
)
def test_boxes_never_meet_and_all_nodes_are_inside_of_one(sites: list[int], rung: str) -> None:
    text = '[cloud]\naddresses = ["203.0.113.10/24"]\nnodes = { hub = 1 }\n'
    for number, count in enumerate(sites):
        nodes = ", ".join(f"n{number}-{each} = 0" for each in range(count))
        text += f'[site.s{number}]\nlan = ["10.{number}.0.0/16"]\nnodes = {{ {nodes} }}\n'
    topology = parse_topology(text, "given", "given.toml")

    root = read(draw(topology, all_paths(topology, rung)[:200]))

    boxes = [numbers(each) for each in root.iter(f"{SVG}rect") if each.get("class") == "site"]
    assert len(boxes) == len(sites) + 1
    for one, other in combinations(boxes, 2):
        assert one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for group in groups(root, "node"):
        left, top, right, bottom = numbers(next(iter(group)))
        assert any(
            box[0] < left and right < box[2] and box[1] < top and bottom < box[3] for box in boxes
        )
        assert 0 < left < right < width
        assert 0 < top < bottom < height


@pytest.mark.parametrize("name", ["demo", "nat-matrix", "three-sites"])
def test_no_line_is_drawn_over_a_caption(name: str) -> None:
    topology = load_topology(name)

    root = read(draw(topology, all_paths(topology, "tunnel")))

    drawn = [each.get("class") for each in root.iter() if each.get("class")]
    assert "pair" not in drawn[drawn.index("caption") :]
    for caption in groups(root, "caption"):
        left, top, right, bottom = numbers(caption.find(f"{SVG}rect"))  # type: ignore[arg-type]
        for text in caption.iter(f"{SVG}text"):
            width = 6.5 * len(text.text or "")
            x, y = float(text.get("x", "")), float(text.get("y", ""))
            assert left <= x - width / 2
            assert x + width / 2 <= right
            assert top <= y - 10
            assert y + 2 <= bottom
