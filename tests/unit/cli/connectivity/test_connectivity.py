"""What is tried, what is told of it, and what a person reads."""

from __future__ import annotations

import asyncio
import base64
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.errors import ConfigError, LimpetError
from limpet.cli.connectivity.plan import Beside, TriedNode, outside_target, plan_tasks
from limpet.cli.connectivity.prober import probe
from limpet.cli.connectivity.report import (
    ALL_ROWS,
    ConnectivityReport,
    complaints,
    result,
    rows,
    summary,
)
from limpet.cli.connectivity.tasks import (
    DENIED_PORT,
    MAX_MESSAGE_BYTES,
    ConnectivityTarget,
    TargetKind,
    TargetOutcome,
    Task,
    decode_outcomes,
    decode_task,
    encode_outcomes,
    encode_task,
)

NAMES = ("a", "b", "c", "d")
NODES = [
    TriedNode(name, (f"192.0.2.{at}",), (f"10.244.{at}.0/24", f"10.245.{at}.0/24"))
    for at, name in enumerate(NAMES)
]
PODS = {name: (f"10.244.{at}.7", f"fd00:{at}::7") for at, name in enumerate(NAMES)}


def tried(task: Task, kind: TargetKind) -> list[str]:
    return [each.address for each in task.targets if each.kind is kind]


def test_each_node_tries_all_pods_and_gateways_and_its_own_addresses() -> None:
    tasks = plan_tasks(NODES, PODS, Beside(), others=16, patience_s=1.0)

    for at, name in enumerate(NAMES):
        assert set(tried(tasks[name], TargetKind.POD)) == {
            each for pod in PODS.values() for each in pod
        }
        # Of segments in which a pod of the test is: others may be of a network that it is not on.
        gateways = {f"10.244.{number}.1" for number in range(len(NAMES))}
        assert set(tried(tasks[name], TargetKind.NODE)) == {*gateways, f"192.0.2.{at}"}


@given(count=st.integers(1, 40), others=st.integers(1, 16))
def test_with_many_nodes_each_is_tried_as_often_as_it_tries(count: int, others: int) -> None:
    nodes = [TriedNode(f"n{number:03}") for number in range(count)]
    pods = {node.name: (f"10.0.0.{at + 1}",) for at, node in enumerate(nodes)}

    tasks = plan_tasks(nodes, pods, Beside(), others=others, patience_s=1.0)

    named = [target.name for task in tasks.values() for target in task.targets]
    wanted = min(others + 1, count)
    assert {named.count(node.name) for node in nodes} == {wanted}
    assert all(len(task.targets) == wanted for task in tasks.values())


def test_beside_pods_each_tries_services_its_own_nodes_port_and_what_is_denied() -> None:
    service = ConnectivityTarget(TargetKind.SERVICE, "by its name", "answerers.x", 7479)
    outside = ConnectivityTarget(TargetKind.OUTSIDE, "192.0.2.9", "192.0.2.9")
    beside = Beside((outside,), (service,), node_port=31234, denied=True)

    task = plan_tasks(NODES, PODS, beside, others=16, patience_s=1.0)["b"]

    assert tried(task, TargetKind.DENIED) == tried(task, TargetKind.POD)
    assert {each.port for each in task.targets if each.kind is TargetKind.DENIED} == {DENIED_PORT}
    assert (
        ConnectivityTarget(TargetKind.SERVICE, "by a node's port", "192.0.2.1", 31234)
        in task.targets
    )
    assert task.targets[-2:] == (service, outside)
    assert result("b", service, TargetOutcome()).family == 0


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("192.0.2.1", ("192.0.2.1", 0)),
        ("192.0.2.1:443", ("192.0.2.1", 443)),
        ("2001:db8::1", ("2001:db8::1", 0)),
        ("[2001:db8::1]:443", ("2001:db8::1", 443)),
    ],
)
def test_what_is_outside_is_an_address_with_or_without_a_port(
    text: str, target: tuple[str, int]
) -> None:
    found = outside_target(text)

    assert (found.address, found.port) == target


@pytest.mark.parametrize("text", ["example.org", "192.0.2.1:", "192.0.2.1:99999", "[::1", ""])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--outside"):
        outside_target(text)


OUTCOMES = st.builds(
    TargetOutcome,
    st.text(max_size=40),
    st.sampled_from(["", "route", "relay-tls"]),
    st.none() | st.floats(0, 1e6).map(lambda each: round(each, 3)),
    st.none() | st.integers(0, 65535),
)


@given(st.lists(OUTCOMES, max_size=20))
def test_what_a_pod_tells_is_read_as_it_was_told(outcomes: list[TargetOutcome]) -> None:
    assert decode_outcomes(encode_outcomes(outcomes)) == outcomes


@given(st.lists(st.text(max_size=300).map(TargetOutcome), max_size=150))
def test_it_fits_into_a_termination_message_however_much_failed(
    outcomes: list[TargetOutcome],
) -> None:
    text = encode_outcomes(outcomes)

    assert len(text.encode()) <= MAX_MESSAGE_BYTES
    found = decode_outcomes(text)
    assert [bool(each.error) for each in found] == [bool(each.error) for each in outcomes]


def test_a_task_is_read_as_it_was_written_and_nonsense_is_refused() -> None:
    task = Task((ConnectivityTarget(TargetKind.POD, "a", "10.0.0.1"),), 2.0)

    assert decode_task(encode_task(task)) == task
    for text in ("", "{}", "z:!", '[["a", 1]]'):
        with pytest.raises(LimpetError):
            decode_task(text)
        with pytest.raises(LimpetError):
            decode_outcomes(text)


def report(*errors: str, broken: dict[str, str] | None = None) -> ConnectivityReport:
    target = ConnectivityTarget(TargetKind.POD, "b", "10.0.0.1")
    results = [
        result("a", target, TargetOutcome(error, "vxlan", 1.0, 1450, 2.0)) for error in errors
    ]
    return ConnectivityReport(
        nodes=["a", "b"], left_out={"c": "it is not Ready"}, broken=broken or {}, results=results
    )


def test_a_person_reads_how_many_and_by_which_rung() -> None:
    good = report("", "")

    assert good.worked
    assert list(summary(good)) == ["pods reach pods by: vxlan 2", "2 nodes, 2 ways tried: all work"]
    assert [row["packet"] for row in rows(good)] == ["1450 B"] * 2
    assert list(complaints(good)) == ["c: left out: it is not Ready"]


def test_what_failed_comes_last_and_alone_where_there_is_much() -> None:
    bad = report("no answer", "")
    assert not bad.worked
    assert [row["result"] for row in rows(bad)] == ["ok", "no answer"]
    assert list(summary(bad))[-1].endswith("1 of them failed")

    many = report("no answer", *[""] * ALL_ROWS)
    assert [row["result"] for row in rows(many)] == ["no answer"]


def test_a_test_that_did_not_come_about_has_not_worked() -> None:
    assert not report("", broken={"b": "its pod did not start"}).worked
    assert not report().worked


def test_what_a_pod_has_packed_does_not_unpack_without_bound() -> None:
    packed = zlib.compress(b'["' + b"a" * 30_000_000, 9)
    text = "z:" + base64.b64encode(packed).decode()
    tracemalloc.start()
    try:
        with pytest.raises(LimpetError):
            decode_outcomes(text)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 8 << 20


@pytest.mark.parametrize(("answers", "said"), [(True, "must not"), (False, "nobody listens")])
def test_a_port_that_a_policy_should_close_and_does_not_is_told(answers: bool, said: str) -> None:
    """Nor is one where nobody listens taken for closed by a policy."""

    async def tried() -> TargetOutcome:
        async with await asyncio.start_server(
            lambda _, writer: writer.close(), "127.0.0.1", 0
        ) as at:
            port = at.sockets[0].getsockname()[1]
            if not answers:
                at.close()
            task = Task((ConnectivityTarget(TargetKind.DENIED, "a", "127.0.0.1", port),), 0.0)
            return (await probe(task, {}, Path("/nowhere")))[0]

    assert said in asyncio.run(tried()).error
