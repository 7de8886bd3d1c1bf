"""The table for people, and the plot: both of medians."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

Series = Mapping[str, Mapping[int, float]]
"""By name of the line: value by number of entries."""
_COLOURS = ("#1f6feb", "#8c564b", "#2ca02c", "#d62728", "#9467bd", "#7f7f7f")
_WIDTH, _HEIGHT, _LEFT, _TOP = 380, 260, 60, 40
_LETTER, _LINE_HEIGHT = 7.5, 14.0
"""Of a name beside a panel: width of a letter and height of a line, as wide as fonts have them."""


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def plot(panels: Mapping[str, Series]) -> str:
    """An SVG: a panel beside the other, both axes in powers of ten."""
    longest = max((len(name) for series in panels.values() for name in series), default=0)
    panel = round(_LEFT + _WIDTH + longest * _LETTER + 16)
    width = len(panels) * panel
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_TOP + _HEIGHT + 60}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{_TOP + _HEIGHT + 60}" fill="white"/>',
    ]
    for number, (title, series) in enumerate(panels.items()):
        parts += _panel(_LEFT + number * panel, title, series)
    return "\n".join([*parts, "</svg>\n"])


def _panel(left: float, title: str, series: Series) -> list[str]:
    sizes = [size for line in series.values() for size in line]
    values = [value for line in series.values() for value in line.values()]
    x0, x1 = math.log10(min(sizes)), math.log10(max(sizes))
    y0, y1 = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def at(size: float, value: float) -> tuple[float, float]:
        return (
            left + (math.log10(size) - x0) / (x1 - x0 or 1) * _WIDTH,
            _TOP + _HEIGHT - (math.log10(value) - y0) / (y1 - y0 or 1) * _HEIGHT,
        )

    parts = [f'<text x="{left}" y="{_TOP - 14}" font-weight="bold">{escape(title)}</text>']
    for power in range(y0, y1 + 1):
        _, y = at(10**x0, 10**power)
        parts.append(_line(left, y, left + _WIDTH, y))
        parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{10**power:g}</text>')
    for size in sorted(set(sizes)):
        x, _ = at(size, 10**y0)
        parts.append(_line(x, _TOP, x, _TOP + _HEIGHT))
        parts.append(
            f'<text x="{x:.0f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{size:,}</text>'
        )
    parts.append(
        f'<text x="{left + _WIDTH / 2}" y="{_TOP + _HEIGHT + 38}" text-anchor="middle">ipBlocks'
        "</text>"
    )
    ends: dict[str, float] = {}
    colours = dict(zip(series, _COLOURS, strict=False))
    for name, colour in colours.items():
        points = [at(size, value) for size, value in sorted(series[name].items())]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        ends[name] = points[-1][1]
    for name, y in _apart(ends).items():  # beside the panel, where no line is
        x = left + _WIDTH + 10
        text = f'<text x="{x}" y="{y + 4:.0f}" fill="{colours[name]}">{escape(name)}</text>'
        parts.append(text)
    return parts


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """Near to those heights, in their order, so that no name covers another one."""
    found: dict[str, float] = {}
    lowest = _TOP + _HEIGHT - (len(heights) - 1) * _LINE_HEIGHT
    above = -math.inf
    for place, (name, y) in enumerate(sorted(heights.items(), key=lambda each: each[1])):
        above = max(above + _LINE_HEIGHT, min(y, lowest + place * _LINE_HEIGHT))
        found[name] = above
    return found


def _line(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="#ddd"/>'
