"""Which nodes the timeline calls silent: once each, and not those that only flap."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from limpet.controller.picture.nodes import heard_of, present, state_of
from limpet.controller.picture.reported import NodePaths
from limpet.controller.picture.silence import NodeSilence, Silence
from limpet.paths.report import NodeReport, PairReport
from limpet.picture.nodes import NodeState
from limpet.picture.pair import Direction, Reach, Way
from limpet.picture.timeline import Entry, Happening
from tests.unit.cluster_values import grant, network

HOLDS_S, UNHEARD_S = 30.0, 300.0
ANSWERS, SILENT, UNKNOWN = NodeState.ANSWERS, NodeState.SILENT, NodeState.UNKNOWN


def silence() -> Silence:
    return Silence(holds_s=HOLDS_S, unheard_s=UNHEARD_S)


def standing(state: NodeState, name: str = "a") -> NodeSilence:
    return NodeSilence(name, state, "" if state is ANSWERS else "it answers nobody", 1.8e9)


def told(watched: Silence, *states: tuple[float, NodeState]) -> list[str]:
    """What became of one node, look by look."""
    return [
        each.became
        for now_s, state in states
        for each in watched.look({"u": standing(state)}, now_s)
    ]


def test_a_node_that_stays_silent_is_told_once_and_once_when_it_is_back() -> None:
    looks = [(0, ANSWERS), (10, SILENT), (30, SILENT), (40, SILENT), (99, SILENT)]
    back = [(100, ANSWERS), (120, ANSWERS), (130, ANSWERS), (200, ANSWERS)]

    assert told(silence(), *looks, *back) == ["silent", "answers"]


def test_a_node_that_flaps_is_not_told() -> None:
    looks = [(at, SILENT if at // 20 % 2 else ANSWERS) for at in range(0, 400, 5)]

    assert told(silence(), *looks) == []


def test_of_whom_nothing_is_known_is_silent_after_longer() -> None:
    assert told(silence(), (0, UNKNOWN), (299, UNKNOWN)) == []
    assert told(silence(), (0, UNKNOWN), (300, UNKNOWN)) == ["silent"]


@given(st.lists(st.tuples(st.floats(0, 60), st.sampled_from(list(NodeState)[:3])), max_size=60))
def test_what_is_told_alternates(steps: list[tuple[float, NodeState]]) -> None:
    watched, now_s, became = silence(), 0.0, []
    for step_s, state in steps:
        now_s += step_s
        became += told(watched, (now_s, state))

    assert became == ["silent", "answers"] * (len(became) // 2) + ["silent"] * (len(became) % 2)


def test_many_at_once_are_one_entry_that_names_some() -> None:
    watched = silence()
    nodes = {f"u{at}": standing(SILENT, f"n{at:03}") for at in range(1000)}
    watched.look(nodes, 0)

    (one,) = watched.look(nodes, HOLDS_S)

    assert one.words.startswith("1000 nodes silent now")
    assert "n000, n001" in one.words
    assert "and 988 more" in one.words
    assert len(one.words) < 400
    assert len(one.names) == 200


def entry(happening: Happening) -> Entry:
    return Entry(
        kind=happening.kind,
        words=happening.words,
        names=happening.names,
        became=happening.became,
        sequence=1,
        at_s=0.0,
    )


def test_after_a_restart_nothing_is_told_twice() -> None:
    before = silence()
    before.look({"u": standing(SILENT)}, 0)
    (said,) = before.look({"u": standing(SILENT)}, HOLDS_S)

    after = silence()
    after.remember([entry(said)])
    assert told(after, (0, UNKNOWN), (UNHEARD_S, UNKNOWN), (900, SILENT)) == []
    assert told(after, (901, ANSWERS), (901 + HOLDS_S, ANSWERS)) == ["answers"]

    back = silence()
    back.remember([entry(Happening(kind="node", words="", names=("a",), became="answers"))])
    assert told(back, (0, SILENT), (HOLDS_S, SILENT)) == ["silent"]


def test_who_left_the_cluster_is_forgotten() -> None:
    watched = silence()
    assert told(watched, (0, SILENT), (HOLDS_S, SILENT)) == ["silent"]
    assert watched.look({}, 50) == []
    assert told(watched, (60, ANSWERS), (200, ANSWERS)) == []


def reported(at_s: float, **reaches: Reach) -> NodePaths:
    pairs = {
        uid: PairReport(uid, Direction(way=Way(reach=reach))) for uid, reach in reaches.items()
    }
    return NodePaths(1, at_s, NodeReport(), pairs)


def test_two_nodes_that_went_together_do_not_vouch_for_each_other() -> None:
    known = {
        "a": reported(100.0, b=Reach.REACHED, c=Reach.REACHED),
        "b": reported(100.0, a=Reach.REACHED),
        "c": reported(1000.0, a=Reach.LOST, b=Reach.LOST),
    }

    here = network()
    grants = {uid: replace(grant(number), uid=uid) for number, uid in enumerate(known, 1)}
    heard = heard_of(present(known, watching=(), since_s=700.0), grants, here)

    states = {uid: state_of(uid, False, known[uid], heard, 700.0)[0] for uid in known}
    assert states == {"a": SILENT, "b": SILENT, "c": ANSWERS}
    connected = heard_of(present(known, watching=("b",), since_s=700.0), grants, here)
    assert connected.reached == {"a": 1}
