"""WireGuard's text protocol: what is asked for is what a device that took it says."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st
from tests.unit.datapath.tunnel.wireguard.wireguard_values import keys, ports, readings, settings

from limpet.datapath.tunnel.state import (
    DeviceReading,
    DeviceSetting,
    PeerReading,
    PeerSetting,
    TunnelPeer,
)
from limpet.datapath.tunnel.wireguard import uapi_codec as uapi

KEY = bytes(range(32))
ANSWER = b"""\
private_key=e84b5a6d2717c1003a13b431570353dbaca9146cf150c5f8575680feba52027a
listen_port=12912
fwmark=4096
something_new=1
public_key=b85996fecc9c7f1fc6d2572a76eda11d59bcd20be8e543b15ce4bd85a8e75a33
preshared_key=188515093e952f5f22e865cef3012e72f8b5f0b598ac0309d5dacce3b70fcf52
endpoint=[abcd:23::33]:51820
last_handshake_time_sec=1
last_handshake_time_nsec=5
tx_bytes=38333
rx_bytes=2224
persistent_keepalive_interval=25
allowed_ip=192.168.4.4/32
allowed_ip=fd00::/64
public_key=58402e695ba1772b1cc9309755f043251ea77fdcf10fbe63989ceb7e19321376
endpoint=182.122.22.19:3233
errno=0

"""
"""As in the protocol's own documentation, with a key that is not known here."""


def answer(reading: DeviceReading) -> bytes:
    """As a device writes it."""
    lines = [f"private_key={reading.private_key.hex()}"] if reading.private_key else []
    lines += [f"listen_port={reading.port}", f"fwmark={reading.mark}"]
    for each in reading.peers.values():
        question = uapi.encode_set(DeviceSetting(peers=(setting_of(each.peer),)))
        lines += [line for line in question.decode().splitlines()[1:] if line]
        lines += [
            f"preshared_key={bytes(32).hex()}",
            "protocol_version=1",
            f"last_handshake_time_sec={each.last_handshake_ns // 10**9}",
            f"last_handshake_time_nsec={each.last_handshake_ns % 10**9}",
            f"tx_bytes={each.sent_bytes}",
            f"rx_bytes={each.received_bytes}",
        ]
    return "\n".join([*lines, "errno=0", "", ""]).encode()


def setting_of(peer: TunnelPeer) -> PeerSetting:
    return PeerSetting(peer.public_key, tuple(peer.allowed), peer.endpoint, peer.keepalive_s)


@given(readings())
def test_what_a_device_says_is_read_whole(reading: DeviceReading) -> None:
    assert uapi.parse_get(answer(reading)) == reading


@given(readings(), readings())
@run_settings(max_examples=25)
def test_what_is_known_of_the_last_answer_changes_nothing_in_what_is_read(
    one: DeviceReading, other: DeviceReading
) -> None:
    known: dict[str, PeerReading] = {}
    peers = {**one.peers, **other.peers}
    moved = {key: replace(each, sent_bytes=each.sent_bytes + 1) for key, each in peers.items()}

    for told in (one, other, replace(one, peers=peers), replace(one, peers=moved), one):
        assert uapi.parse_get(answer(told), known) == told
        assert sorted(map(hash, known.values())) == sorted(map(hash, told.peers.values()))


def test_the_documented_answer_is_read() -> None:
    reading = uapi.parse_get(ANSWER)

    first, second = reading.peers.values()
    assert (reading.port, reading.mark, len(reading.private_key)) == (12912, 4096, 32)
    assert first == PeerReading(
        TunnelPeer(
            bytes.fromhex("b85996fecc9c7f1fc6d2572a76eda11d59bcd20be8e543b15ce4bd85a8e75a33"),
            frozenset({ip_network("192.168.4.4/32"), ip_network("fd00::/64")}),
            (ip_address("abcd:23::33"), 51820),
            25,
        ),
        1_000_000_005,
        2224,
        38333,
    )
    assert second.peer.endpoint == (ip_address("182.122.22.19"), 3233)
    assert uapi.parse_errno(ANSWER) == 0


@given(settings())
def test_a_question_is_one_message_of_lines(setting: DeviceSetting) -> None:
    question = uapi.encode_set(setting)

    assert question.startswith(b"set=1\n")
    assert question.endswith(uapi.END)
    assert uapi.END not in question[:-1]
    assert question.count(b"public_key=") == len(setting.peers)


def test_a_peer_that_goes_is_named_and_nothing_more() -> None:
    going = PeerSetting(KEY, (ip_network("10.0.0.0/8"),), remove=True)

    question = uapi.encode_set(DeviceSetting(peers=(going,)))

    assert question == f"set=1\npublic_key={KEY.hex()}\nremove=true\n\n".encode()


def test_what_is_not_given_is_not_said() -> None:
    assert uapi.encode_set(DeviceSetting()) == b"set=1\n\n"
    question = uapi.encode_set(DeviceSetting(port=1, peers=(PeerSetting(KEY, keepalive_s=0),)))
    assert question.split(b"\n") == [
        b"set=1",
        b"listen_port=1",
        f"public_key={KEY.hex()}".encode(),
        b"persistent_keepalive_interval=0",
        b"",
        b"",
    ]


@given(st.integers(0, 130), st.sampled_from([b"", b"listen_port=1\n"]))
def test_the_error_is_the_last_line(number: int, before: bytes) -> None:
    assert uapi.parse_errno(before + b"errno=%d\n\n" % -number) == number


@pytest.mark.parametrize("text", [b"", b"\n\n", b"listen_port=1\n\n", b"errno=x\n\n"])
def test_an_answer_without_an_error_number_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        uapi.parse_errno(text)


@pytest.mark.parametrize(
    "text",
    [
        b"nonsense\nerrno=0\n\n",
        b"public_key=00\nerrno=0\n\n",
        b"private_key=zz\nerrno=0\n\n",
        b"listen_port=many\nerrno=0\n\n",
        b"public_key=" + KEY.hex().encode() + b"\nallowed_ip=300.0.0.0/8\nerrno=0\n\n",
        b"public_key=" + KEY.hex().encode() + b"\nendpoint=:\nerrno=0\n\n",
        b"\xff=1\nerrno=0\n\n",
    ],
)
def test_a_damaged_answer_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        uapi.parse_get(text)


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_or_refused(text: bytes) -> None:
    for parse in (uapi.parse_get, uapi.parse_errno):
        try:
            parse(text)
        except ValueError:
            continue


@given(keys, ports)
def test_a_private_key_is_never_shown(key: bytes, port: int) -> None:
    for value in (DeviceSetting(key, port), replace(DeviceReading(), private_key=key)):
        assert repr(key) not in repr(value)
        assert key.hex() not in repr(value)
