"""Pods that nodes tell of, merged by what has changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.agent.policies.told_pods import ToldPods, pods_of_all
from limpet.policies.policy import Key, PolicyPod

_NAMES = st.sampled_from([f"web-{number}" for number in range(6)])
_PODS = st.dictionaries(_NAMES, st.sampled_from(["a", "b"]), max_size=3)
_DOCUMENTS = st.sampled_from(["n1/0", "n1/1", "n2/0", "n3/0"])


def pods(labels: dict[str, str]) -> dict[Key, PolicyPod]:
    keys = {Key("shop", name): {"app": label} for name, label in labels.items()}
    return {key: PolicyPod(key, (), label) for key, label in keys.items()}


@given(st.lists(st.tuples(_DOCUMENTS, _PODS, st.none() | _PODS), max_size=12))
def test_what_is_changed_document_by_document_is_what_all_of_them_tell(
    steps: list[tuple[str, dict[str, str], dict[str, str] | None]],
) -> None:
    told, now = ToldPods(), dict[str, dict[Key, PolicyPod]]()
    for document, labels, own in steps:
        told.put(document, pods(labels))
        now[document] = pods(labels)
        if own is not None:
            assert told.with_own(pods(own)) == pods_of_all({"": pods(own), **now})
    assert told.with_own({}) == pods_of_all(now)
