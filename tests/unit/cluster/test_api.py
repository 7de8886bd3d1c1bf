"""Bodies of the controller's API."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster import api
from limpet.cluster.documents import Sealed
from limpet.cluster.keys import public_key_of
from tests.unit.cluster_values import node_key

SEALED = st.builds(Sealed, st.text(), st.binary(max_size=40), st.binary(min_size=64, max_size=64))
PODS = st.builds(
    api.InterfaceAddresses,
    st.text(),
    st.text(),
    st.text(),
    st.text(),
    st.tuples(st.text()) | st.just(()),
)
MESSAGES = st.one_of(
    st.builds(api.Refused, st.sampled_from(api.Code), st.text(), document=st.none() | SEALED),
    st.builds(api.HelloRequest, st.integers(0, 2**62), st.lists(SEALED, max_size=3).map(tuple)),
    st.builds(api.ShowRequest, st.lists(SEALED, max_size=3).map(tuple)),
    st.builds(api.SegmentRequest, st.integers(0, 99), st.just((4, 6))),
    st.builds(api.PodReport, st.integers(0, 99), st.lists(PODS, max_size=3).map(tuple), st.none()),
    st.builds(api.WatchLine, st.sampled_from(api.WatchKind), st.text(), document=SEALED),
    st.builds(api.JoinRequest, st.text(), st.text(), st.binary(max_size=40), st.binary()),
)


@given(MESSAGES)
def test_a_message_is_the_same_after_the_wire(message: api.Refused) -> None:
    assert api.decode(api.encode(message), type(message)) == message


@given(MESSAGES)
def test_a_line_of_a_watch_is_one_line(message: api.Refused) -> None:
    if isinstance(message, api.WatchLine):
        assert api.encode_line(message).count(b"\n") == 1


@given(st.binary(max_size=200), st.sampled_from([api.JoinRequest, api.PodReport, api.WatchLine]))
def test_garbage_is_refused_in_words(data: bytes, kind: type[api.JoinRequest]) -> None:
    with pytest.raises(api.ApiError, match=kind.__name__):
        api.decode(data, kind)


@given(
    st.text("abcdef0123456789", min_size=1, max_size=12),
    st.binary(min_size=16, max_size=40),
    st.binary(min_size=32, max_size=32),
)
def test_a_token_is_the_same_after_it_was_copied(number: str, secret: bytes, digest: bytes) -> None:
    token = api.Token(number, secret, digest)
    assert api.parse_token(f" {api.format_token(token)}\n") == token
    assert api.token_id(f" {api.format_token(token)}\n") == api.token_id(number) == number


@given(st.text(max_size=80) | st.text("lmp1_abc=", max_size=80))
def test_what_is_no_token_is_refused_in_words(text: str) -> None:
    with pytest.raises(api.ApiError, match="read token"):
        api.parse_token(text)


def test_a_token_that_was_cut_short_is_refused() -> None:
    text = api.format_token(api.Token("ab", b"x" * 20, b"y" * 32))
    for length in range(len(text) - 1):
        with pytest.raises(api.ApiError):
            api.parse_token(text[:length])


@pytest.mark.parametrize("key", ["site", "limpet.dev/site", "topology.kubernetes.io/zone"])
def test_the_key_of_a_label_may_have_a_domain(key: str) -> None:
    assert api.label_key_problem(key) is None


@pytest.mark.parametrize("key", ["", "/", "/site", "limpet.dev/", "a/b/c", "a b/c", "é.org/site"])
def test_what_is_no_key_of_a_label_is_told(key: str) -> None:
    assert api.label_key_problem(key)


def test_a_proof_is_for_one_token_one_name_and_one_key() -> None:
    key = node_key(1)
    proof = api.join_proof("token", "name", key)

    def is_proof(token: str, name: str, number: int) -> bool:
        public_key = public_key_of(node_key(number))
        return api.is_join_proof(api.JoinRequest(token, name, public_key, proof))

    assert is_proof("token", "name", 1)
    assert not is_proof("other", "name", 1)
    assert not is_proof("token", "other", 1)
    assert not is_proof("token", "name", 2)
    assert not api.is_join_proof(api.JoinRequest("token", "name", b"short", proof))


def test_every_code_has_an_http_status() -> None:
    assert set(api.HTTP_STATUS) == set(api.Code)
