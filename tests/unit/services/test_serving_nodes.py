"""Nodes whose endpoints are in rotation, counted as Services come and go."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from limpet.services.serving_nodes import ServingNodes
from limpet.services.values import ServiceName

_SERVICES = st.sampled_from([("shop", "a"), ("shop", "b"), ("home", "a")])
_NODES = st.sets(st.sampled_from(["", "n1", "n2", "n3", "n4"]))


@given(st.lists(st.tuples(_SERVICES, _NODES), max_size=20))
def test_those_are_named_that_serve_now_and_no_other_name_is_held(
    steps: list[tuple[ServiceName, set[str]]],
) -> None:
    serving, now = ServingNodes(), dict[ServiceName, set[str]]()
    for service, nodes in steps:
        serving.note(service, nodes)
        now[service] = nodes
        count = Counter(name for each in now.values() for name in each)
        assert len(serving) == len(count)
        del count[""]
        assert set(serving.names) == set(count)
        assert [count[name] for name in serving.names] == sorted(count.values(), reverse=True)
