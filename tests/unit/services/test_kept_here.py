"""What an agent says of nodes and pods to the process that answers names."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.records.version import NewerFormatError
from limpet.services.kept_here import FORGET_AFTER_S, as_of, decode_here, encode_here
from limpet.services.rotation import Here

NAMES = st.text("abc-1", min_size=1, max_size=4)
HERES = st.builds(
    Here,
    node=NAMES,
    zone=NAMES | st.just(""),
    silent=st.frozensets(NAMES),
    gone=st.frozensets(st.just("10.1.0.2") | st.just("fd00::2")),
    distances=st.dictionaries(NAMES, st.integers(1, 99)),
    is_even=st.booleans(),
)


@given(here=HERES, at_s=st.floats(0, 1e9))
def test_what_is_written_is_read(here: Here, at_s: float) -> None:
    assert decode_here(encode_here(here, at_s)) == (here, at_s)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"at_s":1}', b'{"at_s":1,"here":{"silent":5}}'])
def test_nonsense_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_here(content)


def test_an_agent_that_says_no_version_is_understood_and_a_later_one_refused() -> None:
    first = msgspec.json.decode(encode_here(Here("a"), 5.0))
    assert first.pop("version") == 1
    assert decode_here(msgspec.json.encode(first)) == (Here("a"), 5.0)

    with pytest.raises(NewerFormatError, match="it has format 2, this Limpet knows 1"):
        decode_here(b'{"version":2,"here":"anything"}')


def test_who_is_dead_is_forgotten_when_nobody_says_so_any_more_and_who_is_near_is_not() -> None:
    here = Here("a", silent=frozenset({"b"}), gone=frozenset({"10.1.0.2"}), distances={"c": 1})

    assert as_of(here, 5.0, 5.0 + FORGET_AFTER_S - 0.1) == here
    # Later, and of another boot, whose clock was ahead.
    for now_s in (5.0 + FORGET_AFTER_S, 4.0):
        assert as_of(here, 5.0, now_s) == Here("a", distances={"c": 1})
