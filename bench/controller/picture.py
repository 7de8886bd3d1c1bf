"""What the page of a thousand nodes costs: the controller, which makes the picture while somebody
looks, and the page's process, which draws it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

import msgspec
from tests.unit.cluster_values import network

from bench.bed import Bed
from bench.figures import Figure
from limpet.cluster.keys import public_key_of, uid_of
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry
from limpet.controller.picture.making import PictureRecords, make_picture
from limpet.controller.picture.nodes import NodeRecordFacts
from limpet.controller.picture.reported import NodePaths
from limpet.paths.report import NodeReport, PairReport
from limpet.picture.pair import Direction, Reach, Way
from limpet.picture.picture import Picture
from limpet.web.live.map_rows import map_rows

NODES, PAIRS_OF_ONE = 1_000, 40
"""As many pairs as a picture has at most."""
_OF_A_SITE, _OF_A_COMMUNITY = 10, 60


def picture(bed: Bed, rounds: int) -> list[Figure]:
    """CPU time of each step from what nodes have reported to what a browser gets."""
    if bed.reference_only:
        return []
    records, reported = _world()
    took_ms: dict[str, list[float]] = {}

    def timed(step: str, work: Callable[[], Any]) -> Any:
        began_s = time.process_time()
        made = work()
        took_ms.setdefault(step, []).append((time.process_time() - began_s) * 1e3)
        return made

    gc.collect()
    gc.freeze()
    for _ in range(rounds + 1):
        made = timed("made", partial(make_picture, records, reported, 0.0))
        told = timed("told", partial(msgspec.json.encode, made))
        heard = timed("heard", partial(msgspec.json.decode, told, type=Picture))
        timed("rows", partial(_rows, heard))
        gc.collect()
    pairs = f"{NODES:,} nodes, {len(made.pairs):,} pairs"
    words = {
        "made": f"page of {pairs}: the controller makes a picture",
        "told": "... and writes it",
        "heard": "... the page's process reads it",
        "rows": "... and makes the rows of the map",
    }
    # The first one loads what it needs.
    figures = [
        Figure(f"picture-{step}", words[step], "CPU ms", took_ms[step][1:]) for step in words
    ]
    return [*figures, Figure("picture-size", "... a picture", "MB", [len(told) / 1e6])]


def _rows(heard: Picture) -> bytes:
    return msgspec.json.encode(map_rows(heard).document(heard))


def _world() -> tuple[PictureRecords, dict[str, NodePaths]]:
    """Sites of ten; each node reports the ways to so many others."""
    keys = [public_key_of(number.to_bytes(32, "big")) for number in range(1, NODES + 1)]
    uids = [uid_of(key) for key in keys]
    nodes, facts, reported = {}, {}, {}
    way = Direction(way=Way(reach=Reach.REACHED, rung="tunnel", rtt_ms=3.0))
    for number, uid in enumerate(uids):
        grant = Grant(
            uid=uid,
            name=f"node-{number}",
            public_key=keys[number],
            generation=1,
            revision=1,
            segments=(ip_network((0x0A000000 + (number << 8), 24)),),
            communities=(f"line-{number // _OF_A_COMMUNITY}",),
        )
        presence = Presence(
            uid=uid,
            sequence=1,
            boot_id="boot",
            addresses=(ip_address(0xC0A80000 + number),),
        )
        nodes[uid] = NodeEntry(grant, presence)
        facts[uid] = NodeRecordFacts(1.0, (), watches=True)
        half = range(1, PAIRS_OF_ONE // 2 + 1)
        others = [uids[(number + step) % NODES] for each in half for step in (each, -each)]
        near = uids[number - number % _OF_A_SITE]
        report = NodeReport(version="0.1.0", backend="kernel", near=near)
        pairs = {other: PairReport(other, way) for other in others}
        reported[uid] = NodePaths(1, time.time(), report, pairs)
    return PictureRecords(nodes, facts, network(), 1, {}, ()), reported
