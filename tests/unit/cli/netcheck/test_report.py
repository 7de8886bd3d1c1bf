"""What `limpet netcheck` makes of what it found, and whom a person may name."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert, to_builtins

from limpet.base.errors import CommandLineError, LimpetError
from limpet.cli.netcheck.report import NO_IPV6, findings_of
from limpet.cli.netcheck.targets import controller_target, relay_target
from limpet.cli.netcheck.tcp import date_in
from limpet.cli.netcheck.told import Netcheck

RELAY: dict[str, Any] = {
    "kind": "relay",
    "host": "203.0.113.9",
    "address": "203.0.113.9",
    "version": 4,
    "udp_port": 7471,
    "udp_ms": 4.0,
    "seen_as": "198.51.100.7:4001",
    "tcp_port": 443,
    "tcp_ms": 5.0,
    "tcp_problem": "",
    "packet_bytes": 1500,
}
CONTROLLER = {**RELAY, "kind": "controller", "host": "cloud", "udp_port": 7470, "tcp_port": 7470}
SOUND: dict[str, Any] = {
    "observers": [CONTROLLER, RELAY],
    "unresolved": {},
    "nat": {"ipv4": "same"},
    "public": ["198.51.100.7:4001"],
    "hairpin": False,
    "ipv6": "",
    "clock_ahead_s": 0.4,
    "port_mapping": None,
    "lacks": [],
}
SILENT = {"udp_ms": None, "seen_as": "", "packet_bytes": None}
DEAF = {"tcp_ms": None, "tcp_problem": "no answer within 5 s"}
LACK = {"feature": "veth", "cause": "no", "used_for": "pods' interfaces", "module": "CONFIG_VETH"}


def told(**changes: Any) -> Netcheck:
    return findings_of(convert({**SOUND, **changes}, Netcheck))


def wrong(found: Netcheck) -> dict[str, str]:
    return {each.what: each.level.value for each in found.findings if each.level.value != "ok"}


def test_a_kernel_without_ipv6_is_no_ok() -> None:
    found = told(lacks=[to_builtins(NO_IPV6)])

    assert wrong(found) == {f"this machine lacks IPv6: {NO_IPV6.cause}": "warn"}
    assert not any("tunnels carry pods' IPv6" in each.what for each in found.findings)
    assert found.works


def test_a_sound_site_is_all_ok() -> None:
    assert wrong(told()) == {}
    assert told().works


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"observers": []}, "warn", "no controller and no relay was named"),
        ({"unresolved": {"relay x": "unknown"}}, "error", "relay x has no address: unknown"),
        ({"observers": [{**CONTROLLER, **DEAF}]}, "error", "cloud is not reached on TCP port 7470"),
        ({"observers": [{**RELAY, **SILENT}]}, "warn", "UDP is answered by nobody: it is not"),
        ({"observers": [{**RELAY, **SILENT, **DEAF}]}, "error", "no relay is reached in TLS"),
        ({"observers": [{**CONTROLLER, **SILENT}]}, "warn", "or nothing is there"),
        ({"observers": [CONTROLLER, {**RELAY, **SILENT}]}, "warn", "does not answer over UDP"),
        ({"observers": [{**RELAY, **DEAF}]}, "warn", "is not reached in TLS on TCP port 443"),
        ({"observers": [{**RELAY, "packet_bytes": 1300}]}, "warn", "so 1240 in a tunnel"),
        ({"nat": {"ipv4": "symmetric"}}, "warn", "IPv4: a symmetric NAT"),
        ({"nat": {"ipv4": "unknown"}}, "warn", "takes two that answer over UDP"),
        ({"clock_ahead_s": -90000.0}, "warn", "is 1 d 1 h behind of the controller's"),
        ({"lacks": None}, "warn", "what the kernel can do was not tried"),
        ({"lacks": [{**LACK, "essential": True}]}, "error", "this machine lacks veth: no"),
        ({"lacks": [{**LACK, "essential": False}]}, "warn", "this machine lacks veth: no"),
    ],
)
def test_what_stands_in_the_way_is_said_with_its_level_and_what_to_do(
    changes: dict[str, Any], level: str, words: str
) -> None:
    found = told(**changes)

    (said,) = (each for each in found.findings if words in each.what)
    assert said.level.value == level
    assert said.why
    assert said.advice
    assert found.works is (level != "error")


@pytest.mark.parametrize(
    ("words", "host", "ports"),
    [
        ("203.0.113.9", "203.0.113.9", (7471, 443)),
        ("relay.example:5000", "relay.example", (5000, 443)),
        ("relay.example/8443", "relay.example", (7471, 8443)),
        ("[2001:db8::9]:5000/8443", "2001:db8::9", (5000, 8443)),
        ("2001:db8::9", "2001:db8::9", (7471, 443)),
    ],
)
def test_a_relay_is_named_with_its_ports(words: str, host: str, ports: tuple[int, int]) -> None:
    found = relay_target(words)

    assert (found.host, (found.udp_port, found.tcp_port)) == (host, ports)


@pytest.mark.parametrize("words", ["", "a b", "relay:99999", "relay:x", "[::1", "relay/1/2", "a:/"])
def test_what_names_no_relay_is_refused_with_an_example(words: str) -> None:
    with pytest.raises(CommandLineError, match=r"203\.0\.113\.9"):
        relay_target(words)


def test_a_controller_is_named_as_for_joining() -> None:
    assert controller_target("[2001:db8::1]:99").udp_port == 99
    with pytest.raises(LimpetError):
        controller_target("a/b")


def test_the_controllers_time_is_read_from_its_answer_and_nothing_else_is() -> None:
    head = b"HTTP/1.1 200 OK\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n"

    assert date_in(head) == 784111777.0
    assert date_in(b"HTTP/1.1 200 OK\r\n\r\n") is None
    assert date_in(b"Date: " + b"9" * 9999) is None
    assert date_in(b"\xff\xfe") is None
