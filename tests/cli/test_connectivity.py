"""What runs in the pods of `limpet connectivity test`, in two namespaces with a wire."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from limpet.cli.connectivity.tasks import (
    ANSWER_PORT,
    ConnectivityTarget,
    TargetKind,
    TargetOutcome,
    Task,
    decode_outcomes,
    encode_task,
)
from limpet.lab.command import run_command
from limpet.lab.netns import delete_namespace, make_namespace
from tests.waiting import wait_until

MTU_BYTES = 1450
ADDRESSES = {"a": ("10.9.0.1", "fd00:9::1"), "b": ("10.9.0.2", "fd00:9::2")}
PODS = tuple(ConnectivityTarget(TargetKind.POD, "b", each) for each in ADDRESSES["b"])


def run_in(netns: str, *words: str) -> str:
    return run_command(*words, netns=netns)


@pytest.fixture(scope="module")
def wire() -> Iterator[tuple[str, str]]:
    """The namespaces of the one who asks and the one who answers."""
    names = {each: f"lpc{os.getpid()}{each}" for each in ADDRESSES}
    try:
        for name in names.values():
            make_namespace(name)
        run_command(
            *("ip", "link", "add", "wire", "netns", names["a"]),
            *("type", "veth", "peer", "name", "wire", "netns", names["b"]),
        )
        for each, name in names.items():
            run_in(name, "ip", "link", "set", "wire", "mtu", str(MTU_BYTES), "up")
            for address, length in zip(ADDRESSES[each], ("24", "64"), strict=True):
                run_in(
                    *(name, "ip", "address", "add", f"{address}/{length}", "dev", "wire", "nodad")
                )
        with answering(names["b"]):
            yield names["a"], names["b"]
    finally:
        for name in names.values():
            delete_namespace(name)


@contextmanager
def answering(netns: str) -> Iterator[None]:
    process = subprocess.Popen(
        ["ip", "netns", "exec", netns, sys.executable, "-m", "limpet", "connectivity", "pod"]
    )
    try:
        sockets = ("ss", "-lnut", f"sport = :{ANSWER_PORT}")
        wait_until(lambda: run_in(netns, *sockets).count(f":{ANSWER_PORT}") >= 3, "it answers")
        yield
    finally:
        process.terminate()
        assert process.wait(timeout=20) == 0


def outcomes(
    netns: str, *targets: ConnectivityTarget, patience_s: float = 20.0
) -> list[TargetOutcome]:
    task = encode_task(Task(targets, patience_s))
    addresses = ",".join(ADDRESSES["a"])
    words = ("env", f"POD_IPS={addresses}", sys.executable, "-m", "limpet", "connectivity", "pod")
    return decode_outcomes(run_in(netns, *words, "--task", task))


def test_whole_packets_and_streams_go_there_and_back(wire: tuple[str, str]) -> None:
    nodes = tuple(ConnectivityTarget(TargetKind.NODE, "b", each) for each in ADDRESSES["b"])
    outside = ConnectivityTarget(TargetKind.OUTSIDE, "door", ADDRESSES["b"][1], ANSWER_PORT)

    *found, door = outcomes(wire[0], *PODS, *nodes, outside)

    for each in found:
        assert not each.error
        assert each.packet_bytes == MTU_BYTES
        assert each.rtt_ms
    assert [bool(each.tcp_ms) for each in found] == [True, True, False, False]
    assert door.rtt_ms
    assert not door.error


def test_a_narrower_way_back_is_found_out(wire: tuple[str, str]) -> None:
    run_in(wire[1], "ip", "route", "change", "10.9.0.0/24", "dev", "wire", "mtu", "1300")
    try:
        found = outcomes(wire[0], *PODS)
    finally:
        run_in(wire[1], "ip", "route", "change", "10.9.0.0/24", "dev", "wire")

    assert [each.packet_bytes for each in found] == [1300, MTU_BYTES]
    assert not any(each.error for each in found)


def test_a_black_hole_for_large_packets_is_named(wire: tuple[str, str]) -> None:
    run_in(
        wire[1],
        "nft",
        "add table inet wall; add chain inet wall in { type filter hook input priority 0; };"
        "add rule inet wall in meta length > 1000 drop",
    )
    try:
        found = outcomes(wire[0], *PODS, patience_s=5.0)
    finally:
        run_in(wire[1], "nft", "delete", "table", "inet", "wall")

    words = f"packets of {MTU_BYTES} bytes are lost, small ones are not"
    assert [each.error for each in found] == [words] * 2
    assert all(each.rtt_ms for each in found)


def test_who_is_not_there_does_not_answer(wire: tuple[str, str]) -> None:
    absent = (
        ConnectivityTarget(TargetKind.POD, "c", "10.9.0.9"),
        ConnectivityTarget(TargetKind.OUTSIDE, "c", "10.9.0.2", 9),
    )

    found = outcomes(wire[0], *absent, patience_s=1.0)

    assert all(each.error for each in found)
    assert found[0].rtt_ms is None
