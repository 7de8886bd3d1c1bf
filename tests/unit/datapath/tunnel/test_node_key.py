"""A node's tunnel has one key and one port for life, without a file of its own."""

from __future__ import annotations

from limpet.cluster.seal import public_key_of
from limpet.datapath.tunnel.node_key import tunnel_key_of

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
