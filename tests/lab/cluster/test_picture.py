"""What a node shows of the network, and what it remembers, with real agents."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from limpet.base.decoding import convert
from limpet.cloud.path_reports import LOOK_EVERY_S
from limpet.lab.command import LabError
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from limpet.picture.nodes import Node, NodeState
from limpet.picture.pair import Pair, PairDetail, Reach, Way
from limpet.picture.picture import Picture
from limpet.picture.timeline import Timeline
from tests.lab.bed import TWO_SITES, Pinging, a_world, findings, is_refused, limpet
from tests.waiting import PATIENCE_S, wait_until

T = TypeVar("T")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TWO_SITES, tmp_path_factory.mktemp("picture")) as world:
        yield world


def picture(machine: Machine, **arguments: Any) -> Picture:
    return convert(machine.ask("picture", **arguments), Picture)


def named(seen: Picture, name: str) -> Node:
    return next(each for each in seen.nodes if each.name == name)


def pair_with(seen: Picture, name: str) -> Pair:
    """Of the node that looks and another."""
    uid = named(seen, name).uid
    return next(each for each in seen.pairs if uid in (each.one, each.other))


def ways(seen: Picture, name: str) -> tuple[Way, Way]:
    """From who looks, and back."""
    pair = pair_with(seen, name)
    there = (pair.there, pair.back)
    return there if pair.one == seen.viewer.uid else there[::-1]


def found(
    look: Callable[[], T | None],
    what: str = "it never came to be so",
    *,
    patience_s: float = PATIENCE_S,
) -> T:
    value = wait_until(look, what, patience_s=patience_s)
    assert value is not None
    return value


def events(machine: Machine, **arguments: Any) -> Timeline:
    return convert(machine.ask("events", **arguments), Timeline)


def test_a_node_shows_all_that_it_knows(world: World) -> None:
    crane = world.machine("crane-1")

    def settled() -> Picture | None:
        seen = picture(crane)
        if len(seen.pairs) < 2:
            return None
        both = [*ways(seen, "crane-2"), *ways(seen, "digger-1")]
        rungs = [each.rung for each in both]
        timed = ways(seen, "crane-2")[0].rtt_ms and ways(seen, "digger-1")[0].rtt_ms
        return seen if rungs == ["route", "route", "vxlan", "vxlan"] and timed else None

    seen = found(settled, "a route on the link, and VXLAN behind a router")

    assert (seen.viewer.kind, seen.viewer.name) == ("node", "crane-1")
    assert seen.viewer.connected
    assert seen.viewer.cloud.startswith("hears the controller at ")
    assert {each.name for each in seen.nodes} == {"crane-1", "crane-2", "digger-1"}
    assert {each.state for each in seen.nodes} == {NodeState.ANSWERS}
    own, neighbour = named(seen, "crane-1"), named(seen, "crane-2")
    assert own.site == neighbour.site == "site of crane-1"
    assert [(each.name, each.by) for each in seen.sites] == [("site of crane-1", "proven")]
    assert own.pods == 1
    four = next(each for each in own.segments if "." in each.prefix)
    assert (four.size, four.live, four.free) == (5, 1, 4)
    assert next(each for each in neighbour.segments if "." in each.prefix).live is None
    there, _ = ways(seen, "crane-2")
    assert there.reach is Reach.REACHED
    assert there.loss is not None
    assert seen.network.pod_cidrs


def test_a_pair_tells_of_each_rung_what_became_of_its_last_probe(world: World) -> None:
    crane = world.machine("crane-1")
    seen = picture(crane)
    pair = pair_with(seen, "crane-2")

    detail = convert(crane.ask("pair", one=pair.one, other=pair.other), PairDetail)

    here = detail.there if pair.one == seen.viewer.uid else detail.back
    assert here is not None
    assert here.outward.device == "eth0"
    assert here.outward.mtu_bytes
    used = [each for each in here.probes if each.in_use]
    assert {each.rung for each in used} == {"route"}
    assert all(each.answered and each.rtt_ms and each.answered_at_s for each in used)
    assert {each.rung for each in here.probes} >= {"route", "vxlan"}
    assert (here.why_not_direct, here.mend, detail.why_not_allowed) == ("", (), "")


def test_of_two_others_only_they_know(world: World) -> None:
    seen = picture(world.machine("crane-1"))
    one, other = named(seen, "crane-2").uid, named(seen, "digger-1").uid

    detail = convert(world.machine("crane-1").ask("pair", one=one, other=other), PairDetail)

    assert (detail.there, detail.back) == (None, None)
    assert "look there" in detail.why_unknown


def test_whoever_waits_sees_a_peer_fall_silent_and_come_back_and_it_is_remembered(
    world: World,
) -> None:
    crane, other = world.machine("crane-1"), world.machine("digger-1")
    (far,) = other.pods.values()
    last = events(crane).entries[0].sequence
    lost: list[Picture] = []
    listens = threading.Event()

    def watch() -> None:
        seen = picture(crane)
        while not listens.is_set() and ways(seen, "digger-1")[0].reach is not Reach.LOST:
            answer = crane.ask("picture", known=seen.version, wait_s=PATIENCE_S - 1)
            seen = seen if answer.get("unchanged") else convert(answer, Picture)
        lost.append(seen)

    with Pinging(next(iter(crane.pods.values())).netns, far.addresses[0].ip):
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            world.cut("quarry")
            watcher.join(PATIENCE_S)
            assert lost, "nobody was told"
            assert "1 of these silent" in limpet(crane, "status")
            assert re.search(r"digger-1 .*silent", limpet(crane, "peer", "list"))
            assert findings(crane)["peers-unreached"] == "1 of 2 other nodes is silent"
            with pytest.raises(LabError, match="digger-1 is silent: its agent answers"):
                limpet(crane, "path", "crane-1", "digger-1")
        finally:
            listens.set()
            world.restore("quarry")
            watcher.join(PATIENCE_S)
    seen = lost[0]

    assert named(seen, "digger-1").state is NodeState.SILENT
    assert named(seen, "digger-1").why == "it answers by no way"
    assert ways(seen, "digger-1")[1].reach is Reach.UNKNOWN
    there_again = wait_until(
        lambda: [
            each
            for each in events(crane, after=last, node="digger-1").entries
            if each.became == "answers"
        ]
    )
    told = [each.became for each in events(crane, after=last, node="digger-1").entries]
    assert "silent" in told
    assert there_again[0].names == ("crane-1", "digger-1")


def test_a_controller_that_is_gone_is_seen_and_remembered(world: World) -> None:
    crane = world.machine("crane-1")

    world.controller.stop(signal.SIGKILL)
    try:
        lost = found(
            lambda: next(
                (each for each in events(crane).entries if each.kind == "controller"), None
            )
        )
        seen = found(lambda: None if (seen := picture(crane)).viewer.connected else seen)
    finally:
        world.start_controller()

    assert lost.words.startswith("the controller: lost")
    assert seen.viewer.cloud.startswith("does not hear the controller at ")
    assert len(seen.nodes) == 3


def test_an_agent_that_was_killed_says_so_and_remembers_what_was_before(world: World) -> None:
    crane = world.machine("crane-2")
    before = events(crane).entries

    world.kill_agents([crane])
    world.start_agents([crane])

    starts = found(
        lambda: [
            each for each in events(crane, after=before[0].sequence).entries if each.kind == "agent"
        ]
    )
    assert starts[0].words.startswith("the agent started, version ")
    assert "killed, or it crashed" in starts[0].words
    kept = {each.sequence for each in events(crane).entries}
    assert {each.sequence for each in before} <= kept


def cloud_picture(world: World, **arguments: Any) -> Picture:
    return convert(world.controller.ask("picture", **arguments), Picture)


def test_the_cloud_shows_all_pairs_from_both_ends_and_how_full_segments_are(world: World) -> None:
    def settled() -> Picture | None:
        seen = cloud_picture(world)
        told = [way for each in seen.pairs for way in (each.there, each.back)]
        whole = len(seen.pairs) == 3 and all(each.rung and each.rtt_ms for each in told)
        return seen if whole and all(each.machine.version for each in seen.nodes) else None

    # An agent that has just begun tells of ways at once, of round trips when it looks at figures.
    seen = found(settled, "three pairs, told by both ends", patience_s=LOOK_EVERY_S + PATIENCE_S)

    assert seen.viewer.kind == "controller"
    assert {each.state for each in seen.nodes} == {NodeState.ANSWERS}
    crane, other = named(seen, "crane-1"), named(seen, "crane-2")
    assert crane.site == other.site
    pair = next(x for x in seen.pairs if {x.one, x.other} == {crane.uid, other.uid})
    assert (pair.there.rung, pair.back.rung) == ("route", "route")
    four = next(each for each in crane.segments if "." in each.prefix)
    assert (four.size, four.live) == (5, 1)
    detail = convert(world.controller.ask("pair", one=pair.other, other=pair.one), PairDetail)
    assert detail.there is not None
    assert detail.back is not None
    assert detail.there.outward.device == "eth0"
    assert detail.there.way.reach is Reach.REACHED


def test_whoever_waits_in_the_cloud_sees_a_pair_that_dies(world: World) -> None:
    """A site that is cut tells nothing any more, so the other ends do. How long that takes beside
    what the node itself needs to find out is written to standard error."""
    crane, digger = world.machine("crane-1"), world.machine("digger-1")
    (far,) = digger.pods.values()
    before = cloud_picture(world)
    one, uid = named(before, "crane-1").uid, named(before, "digger-1").uid
    told_at_s: dict[str, float] = {}
    ends = threading.Event()

    def reach(seen: Picture) -> Reach:
        pair = next(each for each in seen.pairs if {each.one, each.other} == {one, uid})
        return (pair.there if pair.one == one else pair.back).reach

    def watch(who: str, ask: Callable[..., Any]) -> None:
        seen = convert(ask("picture"), Picture)
        while not ends.is_set() and reach(seen) is not Reach.LOST:
            answer = ask("picture", known=seen.version, wait_s=PATIENCE_S - 1)
            seen = seen if answer.get("unchanged") else convert(answer, Picture)
        told_at_s[who] = time.monotonic()

    asked = {"node": crane.ask, "cloud": world.controller.ask}
    watchers = [threading.Thread(target=watch, args=each) for each in asked.items()]
    with Pinging(next(iter(crane.pods.values())).netns, far.addresses[0].ip):
        for each in watchers:
            each.start()
        world.cut("quarry")
        try:
            for each in watchers:
                each.join(PATIENCE_S)
            assert told_at_s.keys() == asked.keys()
            seen = found(lambda: silent_in_cloud(world, "digger-1"), "nobody reaches it")
        finally:
            ends.set()
            world.restore("quarry")
            for each in watchers:
                each.join(PATIENCE_S)
    took_s = told_at_s["cloud"] - told_at_s["node"]
    sys.stderr.write(f"the cloud shows it {took_s:.2f} s after the node\n")

    reaches = {
        way.reach
        for each in seen.pairs
        for way, target in ((each.there, each.other), (each.back, each.one))
        if target == uid
    }
    assert Reach.LOST in reaches


def silent_in_cloud(world: World, name: str) -> Picture | None:
    seen = cloud_picture(world)
    return seen if named(seen, name).state is NodeState.SILENT else None


def test_events_are_told_by_the_agent_and_by_its_disk_when_it_is_dead(world: World) -> None:
    crane = world.machine("crane-1")
    world.cut("quarry")
    try:
        wait_until(lambda: named(picture(crane), "digger-1").state is NodeState.SILENT)
    finally:
        world.restore("quarry")
    wait_until(lambda: named(picture(crane), "digger-1").state is not NodeState.SILENT)
    alive = limpet(crane, "events", "digger-1")
    assert "digger-1 answers by no way" in alive
    assert "crane-2" not in alive
    everything = json.loads(limpet(crane, "events", "-o", "json"))["entries"]

    world.kill_agents([crane])
    try:
        dead = json.loads(limpet(crane, "events", "-o", "json"))["entries"]
    finally:
        world.start_agents([crane])

    assert {each["sequence"] for each in dead} >= {each["sequence"] for each in everything}
    assert limpet(crane, "events", "--since", "0s").count("\n") == 0
    assert "no time such as" in is_refused(lambda: limpet(crane, "events", "--since", "yesterday"))


def test_the_controller_remembers_who_joined_and_who_did_what(world: World) -> None:
    world.controller.ask("node.label", node="crane-1", add={"site": "harbour"})

    told = found(
        lambda: [
            each
            for each in convert(world.controller.ask("events", after=0), Timeline).entries
            if each.kind == "person" and "node label" in each.words
        ]
    )

    assert told[0].words == "node label: node crane-1, add site=harbour"
    assert told[0].who == "root at the controller's machine"
    assert told[0].names == ("crane-1",)
    joined = convert(world.controller.ask("events", about=("crane-1",)), Timeline).entries
    assert any(each.became == "Joined" for each in joined)
    label = found(lambda: named(cloud_picture(world), "crane-1").site)
    assert label
    shown = world.controller.command("events", "--cluster")
    assert "node label: node crane-1, add site=harbour (by root at the controller" in shown
