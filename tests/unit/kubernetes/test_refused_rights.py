"""Whether a refused right is lacking, or the API server has just started."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.kubernetes.access.refused_rights import LASTS_S, RefusedRights


def test_what_is_refused_for_a_moment_is_not_lacking_and_what_lasts_is() -> None:
    rights = RefusedRights()

    assert not rights.refused("list nodes", 100.0)
    assert not rights.refused("list nodes", 99.0 + LASTS_S)
    assert rights.refused("list nodes", 100.0 + LASTS_S)
    assert rights.refused("list nodes", 5000.0)


def test_what_was_granted_since_is_counted_anew() -> None:
    rights = RefusedRights()
    rights.refused("get leases limpet-controller", 100.0)
    rights.granted("get leases limpet-controller")

    assert not rights.refused("get leases limpet-controller", 100.0 + LASTS_S)


def test_each_verb_and_kind_is_counted_by_itself_whatever_the_objects_name() -> None:
    rights = RefusedRights()
    rights.refused("get nodes n1", 100.0)

    assert rights.refused("get nodes n2", 100.0 + LASTS_S)
    assert not rights.refused("list nodes", 100.0 + LASTS_S)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.floats(0, 10)), max_size=60),
)
def test_it_is_as_if_all_had_been_remembered(asked: list[tuple[str, bool, float]]) -> None:
    rights = RefusedRights()
    history: list[tuple[str, bool, float]] = []
    now_s = 0.0
    for what, granted, passed_s in asked:
        now_s += passed_s
        history.append((what, granted, now_s))
        if granted:
            rights.granted(what)
            continue
        of_it = [(g, at_s) for w, g, at_s in history if w == what]
        last_granted = max((i for i, (g, _) in enumerate(of_it) if g), default=-1)
        lasts = now_s - of_it[last_granted + 1][1] >= LASTS_S
        assert rights.refused(what, now_s) is lasts
