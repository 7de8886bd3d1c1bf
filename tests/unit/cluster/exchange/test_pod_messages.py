"""What a member tells of pods that somebody looks for: names and addresses, and nothing else."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.datagrams.peer_datagram import DatagramError
from limpet.cluster.exchange.pod_messages import PodsTold, ToldPod, encode, parse_told, told

NONCE = bytes(8)


def heard(*pods: ToldPod) -> tuple[ToldPod, ...]:
    return parse_told(encode(PodsTold(NONCE, pods))).pods


@pytest.mark.parametrize(
    "text", ["a\nb", "\x1b[2J", "a\u202eb", "web 0", "wеb-0", "\x7f"], ids=ascii
)
@pytest.mark.parametrize("where", ["namespace", "name"])
def test_a_name_with_more_than_printable_ascii_is_no_pods(where: str, text: str) -> None:
    names = {"namespace": "shop", "name": "web-0", where: text}

    with pytest.raises(DatagramError, match="printable ASCII") as caught:
        heard(ToldPod(**names, addresses=()))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text", ["fe80::1%eth0", "fe80::1%\x1b[2J", "10.0.0.300", "web-0", "", "1.2.3.4/32"]
)
def test_what_is_no_address_that_means_the_same_everywhere_is_refused(text: str) -> None:
    with pytest.raises(DatagramError, match="address"):
        heard(ToldPod("shop", "web-0", ("10.244.1.2", text)))


def test_addresses_are_those_that_are_written_shortest() -> None:
    (pod,) = heard(ToldPod("", "web-0", ("10.244.1.2", "FD00:0:0::02")))

    assert pod == ToldPod("", "web-0", ("10.244.1.2", "fd00::2"))


@given(st.text(max_size=8), st.lists(st.text(max_size=45) | st.ip_addresses().map(str), max_size=3))
def test_whatever_is_told_is_printable_and_of_addresses_or_refused(
    name: str, addresses: list[str]
) -> None:
    try:
        (pod,) = heard(ToldPod("shop", name, tuple(addresses)))
    except DatagramError:
        return
    assert pod.name == name
    assert name.isprintable()
    assert pod.addresses == tuple(str(ip_address(each)) for each in addresses)


def test_a_pod_with_a_name_that_nobody_takes_is_left_out_of_an_answer() -> None:
    good = ToldPod("shop", "web-0", ("10.244.1.2",))

    answer = told(NONCE, [ToldPod("shop", "größe", ()), good])

    assert parse_told(encode(answer)).pods == (good,)
