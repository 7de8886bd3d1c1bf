"""Which names are taken from others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.text.names import label_problem, name_problem


@given(st.text())
def test_a_name_that_is_taken_can_be_printed_anywhere(name: str) -> None:
    if not name_problem(name):
        assert name
        assert name.isascii()
        assert name.isprintable()
        assert not set(name) & set(" /\\:;=,'\"[]$`")


@pytest.mark.parametrize("name", ["web-0", "kube-system", "Podman_1.2", "0", "a" * 253])
def test_names_of_pods_as_they_are_in_the_field(name: str) -> None:
    assert name_problem(name) == ""


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "a\x1b", "a\u202e", "ü", "a" * 254, ".."])
def test_names_that_nobody_needs(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("app", "web"),
        ("app.kubernetes.io/name", "web_1.2"),
        ("a", ""),
        ("x" * 63, "y" * 63),
    ],
)
def test_labels_as_kubernetes_allows_them(key: str, value: str) -> None:
    assert label_problem(key, value) == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", "a"),
        ("a\n", "b"),
        ("a", "b\x1b[2J"),
        ("a", "b c"),
        ("x" * 64, "a"),
        ("a", "y" * 64),
        ("/a", "b"),
        ("UP/a", "b"),
        ("a/b/c", "d"),
    ],
)
def test_labels_that_kubernetes_refuses(key: str, value: str) -> None:
    assert label_problem(key, value)
