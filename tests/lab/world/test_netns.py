"""Network namespaces as `ip netns` has them, made without it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from limpet.lab.command import LabError, run_command
from limpet.lab.netns import FOLDER, delete_namespace, make_namespace


@pytest.fixture
def name() -> Iterator[str]:
    name = f"ltns{os.getpid()}"
    yield name
    delete_namespace(name)


def test_ip_knows_it_its_loopback_is_up_and_who_made_it_is_where_it_was(name: str) -> None:
    before = os.readlink("/proc/thread-self/ns/net")

    make_namespace(name)

    assert name in run_command("ip", "netns", "list").split()
    assert "UP" in run_command("ip", "link", "show", "lo", netns=name).split(">")[0]
    assert os.readlink("/proc/thread-self/ns/net") == before
    assert run_command("readlink", "/proc/self/ns/net", netns=name).strip() != before


def test_a_name_that_is_taken_is_refused_and_what_has_it_stays(name: str) -> None:
    make_namespace(name)
    there = (FOLDER / name).stat().st_ino

    with pytest.raises(LabError, match=f"make network namespace {name}: File exists"):
        make_namespace(name)

    assert (FOLDER / name).stat().st_ino == there


def test_it_goes_also_when_it_has_gone_already(name: str) -> None:
    make_namespace(name)
    for _ in range(2):
        delete_namespace(name)
    assert not (FOLDER / name).exists()
