"""What a request has to be like."""

from __future__ import annotations

import pytest

from limpet.web.access.checks import HEADERS, host_problem, origin_problem


@pytest.mark.parametrize("host", ["127.0.0.1:7474", "localhost:7474", "[::1]:7474", "127.0.0.1"])
def test_loopback_is_known_by_its_addresses(host: str) -> None:
    assert host_problem(host, (), only_loopback=True) == ""


@pytest.mark.parametrize(
    "host", ["evil.example:7474", "192.0.2.1:7474", "", "127.0.0.1.evil.example", "localhost.", "["]
)
def test_on_loopback_nothing_else_is(host: str) -> None:
    assert host_problem(host, (), only_loopback=True)


def test_in_the_cloud_addresses_and_given_names_are_known() -> None:
    names = {"limpet.example.org"}

    assert host_problem("limpet.example.org", names, only_loopback=False) == ""
    assert host_problem("Limpet.Example.org:7480", names, only_loopback=False) == ""
    assert host_problem("192.0.2.1:7480", names, only_loopback=False) == ""
    assert host_problem("other.example.org", names, only_loopback=False)


@pytest.mark.parametrize(
    ("origin", "site", "is_taken"),
    [
        ("http://127.0.0.1:7474", "same-origin", True),
        ("http://127.0.0.1:7474", None, True),
        (None, "same-origin", True),
        (None, None, False),
        ("null", None, False),
        ("http://127.0.0.1:8080", "same-site", False),
        ("http://127.0.0.1:8080", None, False),
        ("https://127.0.0.1:7474", None, True),  # of a proxy before it
        ("https://127.0.0.1:8080", None, False),
        ("http://evil.example", "cross-site", False),
        ("http://127.0.0.1:7474", "cross-site", False),
        ("http://127.0.0.1:7474", "none", False),
    ],
)
def test_only_a_page_of_this_server_changes_anything(
    origin: str | None, site: str | None, is_taken: bool
) -> None:
    problem = origin_problem("127.0.0.1:7474", origin, site, tls=False)

    assert (problem == "") is is_taken


def test_the_policy_allows_nothing_inline_and_no_other_host() -> None:
    policy = HEADERS["Content-Security-Policy"]

    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "*" not in policy


def test_in_tls_a_page_in_clear_is_another_one() -> None:
    assert origin_problem("limpet.example.org", "https://limpet.example.org", None, tls=True) == ""
    assert origin_problem("limpet.example.org", "http://limpet.example.org", None, tls=True)
