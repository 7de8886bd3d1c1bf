"""A picture of a world as SVG: sites on a ring, their nodes, and a line for each pair."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from xml.sax.saxutils import escape, quoteattr

from limpet.lab.measure.paths import SeenPath
from limpet.lab.topology import Topology
from limpet.lab.world.site import CLOUD, LabSite, Nat, SiteNode

_NODE_WIDTH, _NODE_HEIGHT, _GAP, _MARGIN = 96.0, 26.0, 14.0, 16.0
_HEAD, _LEGEND = 40.0, 60.0
_LETTER = 7.5
"""Width of a letter of a caption, as wide as fonts have them."""
_GROWTH = 1.05
_PULL = 0.25
"""How far lines bend to the middle, so that they keep off the boxes between their ends."""

_LINES = {
    "route": ("#1a7f37", ""),
    "vxlan": ("#0b7a75", "9 3"),
    "tunnel": ("#1f5fd0", ""),
    "relay": ("#d9730d", "7 4"),
    "relay-tls": ("#b3261e", "2 4"),
    "": ("#8a8a8a", "1 6"),
}
"""Colour and dashes by rung, best first; colour alone is not enough for every eye."""
_WORDS = {"": "no way"}
_UNKNOWN = ("#6b3fa0", "4 2 1 2")

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Box:
    site: LabSite
    left: float
    top: float
    width: float
    height: float

    @property
    def centre(self) -> Point:
        return self.left + self.width / 2, self.top + self.height / 2

    def meets(self, other: _Box) -> bool:
        return (
            abs(self.centre[0] - other.centre[0]) < (self.width + other.width) / 2 + _GAP
            and abs(self.centre[1] - other.centre[1]) < (self.height + other.height) / 2 + _GAP
        )

    def places(self) -> dict[str, Point]:
        """Middles of its nodes by name."""
        x = self.left + self.width / 2
        first = self.top + _HEAD + _NODE_HEIGHT / 2
        return {
            node.name: (x, first + number * (_NODE_HEIGHT + _GAP))
            for number, node in enumerate(self.site.nodes)
        }


def draw(topology: Topology, paths: Iterable[SeenPath]) -> str:
    """SVG text. A line has the colours of its two halves where the two directions differ."""
    seen = {(path.source, path.target): path for path in paths}
    boxes = _arrange([topology.cloud, *topology.sites])
    places = {name: at for box in boxes for name, at in box.places().items()}
    width = max(box.left + box.width for box in boxes) + _MARGIN
    bottom = max(box.top + box.height for box in boxes) + _MARGIN
    middle = (width / 2, bottom / 2)
    home = {node.name: box.site.name for box in boxes for node in box.site.nodes}
    body = [*map(_box, boxes)]
    for one, other in combinations(places, 2):
        there, back = seen.get((one, other)), seen.get((other, one))
        if there is not None or back is not None:
            bend = _bend(places[one], places[other], middle, home[one] == home[other])
            body.append(_pair((one, places[one]), (other, places[other]), bend, there, back))
    body += [_node(node, places[node.name]) for box in boxes for node in box.site.nodes]
    body += map(_label, boxes)
    body.append(_legend(bottom, [path.rung for path in seen.values()]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{bottom + _LEGEND:.0f}" viewBox="0 0 {width:.0f} {bottom + _LEGEND:.0f}" '
        'font-family="sans-serif" font-size="12">\n'
        f"<title>{escape(topology.name)}</title>\n"
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _arrange(sites: Sequence[LabSite]) -> list[_Box]:
    """On an ellipse, the first one on top, as small as it can be."""
    radius = 150.0
    while True:
        boxes = [_on_ring(site, number / len(sites), radius) for number, site in enumerate(sites)]
        if not any(one.meets(other) for one, other in combinations(boxes, 2)):
            break
        radius *= _GROWTH
    left, top = min(box.left for box in boxes), min(box.top for box in boxes)
    return [
        _Box(box.site, box.left - left + _MARGIN, box.top - top + _MARGIN, box.width, box.height)
        for box in boxes
    ]


def _on_ring(site: LabSite, part: float, radius: float) -> _Box:
    width = max(_NODE_WIDTH + 2 * _GAP, _letters(site) * _LETTER + _GAP)
    height = _HEAD + max(1, len(site.nodes)) * (_NODE_HEIGHT + _GAP)
    x = 1.5 * radius * math.sin(2 * math.pi * part)
    y = -radius * math.cos(2 * math.pi * part)
    return _Box(site, x - width / 2, y - height / 2, width, height)


def _letters(site: LabSite) -> int:
    """Length of the longest line of a site's caption."""
    return max(len(site.name), len(_nat_words(site)))


def _nat_words(site: LabSite) -> str:
    if site.name == CLOUD:
        return "public addresses"
    words = "no NAT" if site.nat is Nat.NONE else f"{site.nat} NAT"
    return words + (", UDP blocked" if site.udp_blocked else "")


def _fill(box: _Box) -> str:
    return "#eef4ff" if box.site.name == CLOUD else "#f6f6f2"


def _box(box: _Box) -> str:
    return (
        f'<rect class="site" x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="8" fill="{_fill(box)}" stroke="#999"/>'
    )


def _label(box: _Box) -> str:
    """On a plate of its own over the lines, which pass behind it."""
    x = box.left + box.width / 2
    width = min(_letters(box.site) * _LETTER + 8, box.width - 2)
    return (
        '<g class="caption" text-anchor="middle">'
        f'<rect x="{x - width / 2:.1f}" y="{box.top + 2:.1f}" width="{width:.1f}" '
        f'height="{_HEAD - 6:.0f}" rx="4" fill="{_fill(box)}"/>'
        f'<text x="{x:.1f}" y="{box.top + 16:.1f}" font-weight="bold">'
        f"{escape(box.site.name)}</text>"
        f'<text x="{x:.1f}" y="{box.top + 31:.1f}" fill="#444">{escape(_nat_words(box.site))}'
        "</text></g>"
    )


def _node(node: SiteNode, at: Point) -> str:
    relay = "relay" in node.roles
    return (
        f'<g class="node" data-name={quoteattr(node.name)}>'
        f'<rect x="{at[0] - _NODE_WIDTH / 2:.1f}" y="{at[1] - _NODE_HEIGHT / 2:.1f}" '
        f'width="{_NODE_WIDTH:.0f}" height="{_NODE_HEIGHT:.0f}" rx="4" '
        f'fill="{"#fff3dc" if relay else "white"}" stroke="#333"/>'
        f'<text x="{at[0]:.1f}" y="{at[1] + 4:.1f}" text-anchor="middle">'
        f"{escape(node.name)}{' (relay)' if relay else ''}</text></g>"
    )


def _bend(one: Point, other: Point, middle: Point, neighbours: bool) -> Point:
    """Control point of the curve between two nodes."""
    x, y = (one[0] + other[0]) / 2, (one[1] + other[1]) / 2
    if neighbours:  # one above the other: around what stands between them
        return x + _NODE_WIDTH + abs(one[1] - other[1]) / 4, y
    return x + _PULL * (middle[0] - x), y + _PULL * (middle[1] - y)


def _pair(
    one: tuple[str, Point],
    other: tuple[str, Point],
    bend: Point,
    there: SeenPath | None,
    back: SeenPath | None,
) -> str:
    words = [_said(each) for each in (there, back) if each is not None]
    halves = _halves(one[1], bend, other[1])
    rungs = [each.rung if each is not None else "" for each in (there, back)]
    curves = "".join(
        f'<path d="{curve}" fill="none" stroke="{colour}" stroke-width="2"'
        + (f' stroke-dasharray="{dashes}"' if dashes else "")
        + "/>"
        for curve, rung in zip(halves, rungs, strict=True)
        for colour, dashes in [_LINES.get(rung, _UNKNOWN)]
    )
    return (
        f'<g class="pair" data-from={quoteattr(one[0])} data-to={quoteattr(other[0])} '
        f"data-rungs={quoteattr(' '.join(rung or 'none' for rung in rungs))}>"
        f"<title>{escape('; '.join(words))}</title>{curves}</g>"
    )


def _said(path: SeenPath) -> str:
    words = f"{path.source} to {path.target}: {_WORDS.get(path.rung, path.rung)}"
    words += f" {path.endpoint}" if path.endpoint else ""
    words += f" by {path.relay}" if path.relay else ""
    return words + (f" ({path.why})" if path.why else "")


def _halves(one: Point, bend: Point, other: Point) -> tuple[str, str]:
    near, far = _between(one, bend), _between(bend, other)
    half = _between(near, far)
    return _curve(one, near, half), _curve(half, far, other)


def _between(one: Point, other: Point) -> Point:
    return (one[0] + other[0]) / 2, (one[1] + other[1]) / 2


def _curve(start: Point, control: Point, end: Point) -> str:
    (x, y), (cx, cy), (ex, ey) = start, control, end
    return f"M{x:.1f} {y:.1f}Q{cx:.1f} {cy:.1f} {ex:.1f} {ey:.1f}"


def _legend(top: float, rungs: Sequence[str]) -> str:
    """One entry for each rung, with the number of paths on it."""
    found = []
    for number, (rung, (colour, dashes)) in enumerate(_LINES.items()):
        x, y = _MARGIN + 150 * (number % 3), top + 12 + 22 * (number // 3)
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        found.append(
            f'<path d="M{x:.0f} {y:.0f}h36" stroke="{colour}" stroke-width="3"{dash}/>'
            f'<text x="{x + 44:.0f}" y="{y + 4:.0f}">'
            f"{_WORDS.get(rung, rung)}: {rungs.count(rung)}</text>"
        )
    return '<g class="legend">' + "".join(found) + "</g>"
