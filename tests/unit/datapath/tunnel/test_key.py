"""A tunnel key is made of the identity, and of the public half alone by whoever knows that."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.keys import public_key_of
from limpet.datapath.tunnel.key import (
    tunnel_key_of,
    tunnel_port,
    tunnel_private_key,
    tunnel_public_key,
)

seeds = st.binary(min_size=32, max_size=32)


@given(seeds)
def test_what_others_make_of_the_public_half_is_the_public_half_of_the_private_one(
    seed: bytes,
) -> None:
    identity = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    private = X25519PrivateKey.from_private_bytes(tunnel_private_key(seed))

    assert tunnel_public_key(identity) == private.public_key().public_bytes_raw()


@given(seeds)
def test_the_private_half_is_clamped_as_devices_tell_it(seed: bytes) -> None:
    key = tunnel_private_key(seed)

    assert len(key) == 32
    assert (key[0] & 7, key[31] & 192) == (0, 64)


@given(st.binary(max_size=40))
def test_any_bytes_give_a_key_or_zeros(public_key: bytes) -> None:
    made = tunnel_public_key(public_key)

    assert len(made) == 32
    assert len(public_key) == 32 or not any(made)


def test_a_key_without_a_counterpart_gives_zeros() -> None:
    one = (1).to_bytes(32, "little")
    the_same = (2**255 - 18).to_bytes(32, "little")

    assert not any(tunnel_public_key(one) + tunnel_public_key(the_same))


@given(st.binary(min_size=32, max_size=32))
def test_a_port_is_none_of_those_that_others_are_given(public_key: bytes) -> None:
    assert 22999 < tunnel_port(public_key) < 30000


ONE, OTHER = bytes(31) + b"\1", bytes(31) + b"\2"


def test_key_and_port_are_the_same_for_ever() -> None:
    assert tunnel_key_of(ONE, public_key_of(ONE)) == tunnel_key_of(ONE, public_key_of(ONE))


def test_a_port_that_was_asked_for_changes_no_key() -> None:
    made, asked = (tunnel_key_of(ONE, public_key_of(ONE), port=port) for port in (0, 4000))

    assert asked.port == 4000
    assert (asked.private_key, asked.public_key) == (made.private_key, made.public_key)


def test_two_nodes_have_different_keys_and_ports() -> None:
    one, other = (tunnel_key_of(seed, public_key_of(seed)) for seed in (ONE, OTHER))

    assert one.public_key != other.public_key
    assert one.port != other.port


def test_the_private_key_is_never_shown() -> None:
    made = tunnel_key_of(ONE, public_key_of(ONE))

    assert repr(made.private_key) not in repr(made)
