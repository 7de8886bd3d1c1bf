from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from limpet.base.bounds import members
from limpet.cloud.pod_reports import PodReports, keep_bindings
from limpet.cluster.api import InterfaceAddresses, PodReport, encode
from limpet.cluster.segments import SegmentUse
from limpet.cni.ledgers import Ledgers
from limpet.cni.usage import segment_usage
from limpet.controller.registry.records import ReportRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.state.report_parts import check_report, merge_report, touched_parts
from limpet.datapath.node.pod.attachments import Attachments
from limpet.ipam.leases import Holder, PodKey, segment_range
from limpet.ipam.ledger import Ledger
from tests.effort import examples
from tests.unit.ipam.ledgers import V4, V6, ip, open_ledger, pod, ranges, sandbox, texts

WIDE = ranges("10.64.0.0/18")


@contextmanager
def opened(folder: Path, *networks: str) -> Iterator[Ledgers]:
    ledgers = Ledgers(folder / "networks", 30.0, Attachments(folder / "run"))
    try:
        for network in networks or ("net",):
            ledgers.ledger(network)
        yield ledgers
    finally:
        ledgers.close()


def add(
    ledgers: Ledgers, name: str, *, network: str = "net", box: str = "", ifname: str = "eth0"
) -> list[str]:
    given = ledgers.ledger(network).reserve(
        Holder(box or f"box-{name}", ifname), pod(name, ifname=ifname), [V4, V6], now_s=0
    )
    return texts(given)


def told(pods: tuple[InterfaceAddresses, ...]) -> dict[tuple[str, str, str], tuple[str, ...]]:
    return {(each.network, each.pod, each.ifname): each.addresses for each in pods}


class Controller:
    """What a controller makes of the reports."""

    def __init__(self) -> None:
        self.record: ReportRecord | None = None
        self.parts: dict[int, tuple[InterfaceAddresses, ...]] = {}

    @property
    def sequence(self) -> int | None:
        return self.record.sequence if self.record is not None else None

    def take(self, report: PodReport) -> int:
        assert len(encode(report)) < members.REPORT_BODY.most
        checked = check_report(self.record, report)
        if checked is not None:
            touched = {part: self.parts[part] for part in touched_parts(self.record, checked)}
            merged = merge_report(self.record, touched, checked, 0.0, lambda: 1)
            self.record = merged.record
            self.parts |= {part: each.pods for part, each in merged.parts.items()}
            self.parts[0] = merged.record.pods
            for part in merged.gone:
                self.parts.pop(part, None)
        assert self.record is not None
        return self.record.sequence

    def catch_up(self, book: PodReports, base: int | None = None) -> int:
        """As the agent does it; how many reports it took."""
        count = 0
        base = self.sequence if base is None else base
        while (report := book.report(base)) is not None:
            count += 1
            assert count < 20
            try:
                base = self.take(report)
            except RefusedError:
                base = None
            else:
                book.acknowledged(base)
        return count

    @property
    def pods(self) -> dict[tuple[str, str, str], tuple[str, ...]]:
        return told(tuple(pod for held in self.parts.values() for pod in held))


def test_the_first_report_says_everything_and_the_next_what_changed(tmp_path: Path) -> None:
    with opened(tmp_path) as ledgers:
        book = PodReports(ledgers, tmp_path / "reports.json")
        a = add(ledgers, "a")
        first = book.report(None)
        assert first is not None
        assert first.base is None
        assert told(first.pods) == {("net", "a", "eth0"): tuple(a)}
        book.acknowledged(first.sequence)
        assert book.report(first.sequence) is None

        b = add(ledgers, "b")
        ledgers.ledger("net").forget(pod("a"), now_s=0)
        book.changed()
        second = book.report(first.sequence)
        assert second is not None
        assert (second.base, second.sequence) == (first.sequence, first.sequence + 1)
        assert told(second.pods) == {
            ("net", "a", "eth0"): (),
            ("net", "b", "eth0"): tuple(b),
        }


def test_a_node_without_pods_says_so_once(tmp_path: Path) -> None:
    with opened(tmp_path) as ledgers:
        controller, book = Controller(), PodReports(ledgers, tmp_path / "reports.json")
        assert controller.catch_up(book) == 1
        assert controller.catch_up(book) == 0


def test_an_address_that_is_kept_for_an_absent_pod_is_told_and_one_without_a_pod_is_not(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, "net", "other") as ledgers:
        addresses = add(ledgers, "a")
        ledgers.ledger("net").release(sandbox("box-a"), now_s=0)
        ledgers.ledger("other").reserve(sandbox("x"), PodKey("", "", "eth0"), [V4], now_s=0)
        report = PodReports(ledgers, tmp_path / "reports.json").report(None)
        assert report is not None
        assert told(report.pods) == {("net", "a", "eth0"): tuple(addresses)}


def test_a_pod_that_is_gone_is_told_as_such_and_as_there_when_it_is_back(tmp_path: Path) -> None:
    controller = Controller()

    def kept() -> dict[str, bool]:
        return {pod.pod: pod.kept for held in controller.parts.values() for pod in held}

    with opened(tmp_path) as ledgers:
        book = PodReports(ledgers, tmp_path / "reports.json")
        addresses = {name: tuple(add(ledgers, name)) for name in ("a", "b")}
        controller.catch_up(book)
        assert kept() == {"a": False, "b": False}

        ledgers.ledger("net").release(sandbox("box-a"), now_s=0)
        book.changed()
        assert controller.catch_up(book) == 1
        assert kept() == {"a": True, "b": False}
        assert controller.pods == {("net", name, "eth0"): addresses[name] for name in "ab"}

        add(ledgers, "a", box="another")
        book.changed()
        assert controller.catch_up(book) == 1
        assert kept() == {"a": False, "b": False}


def test_a_restart_tells_nothing_again_unless_something_changed(tmp_path: Path) -> None:
    controller, path = Controller(), tmp_path / "reports.json"
    with opened(tmp_path) as ledgers:
        add(ledgers, "a")
        assert controller.catch_up(PodReports(ledgers, path)) == 1
    with opened(tmp_path) as ledgers:
        assert controller.catch_up(PodReports(ledgers, path)) == 0
    with opened(tmp_path) as ledgers:
        add(ledgers, "b")
        report = PodReports(ledgers, path).report(controller.sequence)
        assert report is not None
        assert report.base is None
        assert report.sequence > (controller.sequence or 0)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"version":1,"sequence":"x"}', b'{"version":"x"}']
)
def test_a_damaged_memory_of_reports_only_costs_a_whole_report(
    tmp_path: Path, content: bytes
) -> None:
    controller, path = Controller(), tmp_path / "reports.json"
    with opened(tmp_path) as ledgers:
        add(ledgers, "a")
        controller.catch_up(PodReports(ledgers, path))
        path.write_bytes(content)
        book = PodReports(ledgers, path)
        report = book.report(controller.sequence)
        assert report is not None
        assert report.base is None
        assert controller.catch_up(book) == 1


def test_more_than_fits_one_report_is_told_in_several_and_no_more_than_a_controller_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "REPORTED_PODS", replace(members.REPORTED_PODS, most=60))
    monkeypatch.setattr("limpet.cloud.pod_reports._REPORT_BYTES", 4096)
    with opened(tmp_path) as ledgers:
        ledger = ledgers.ledger("net")
        for number in range(70):
            name = f"{number:05}-" + "n" * 150
            ledger.reserve(sandbox(f"box-{number}"), pod(name), [WIDE], now_s=0)
            if number < 20:
                ledger.release(sandbox(f"box-{number}"), now_s=0)
        controller, book = Controller(), PodReports(ledgers, tmp_path / "reports.json")
        assert controller.catch_up(book) > 2
        names = {name[:5] for _, name, _ in controller.pods}
        assert names == {f"{number:05}" for number in range(10, 70)}


def test_a_node_full_of_pods_of_both_ip_versions_is_told_whole(tmp_path: Path) -> None:
    """With names as long as those of Deployments and StatefulSets get."""
    count, v6 = 600, ranges("fd00::/64")
    with opened(tmp_path) as ledgers:
        ledger = ledgers.ledger("net")
        for number in range(count):
            name = f"{'a-service-of-a-team' * 2}-7d9f8b6c5d-{number:05}"
            ledger.reserve(sandbox(f"box-{number}"), pod(name), [WIDE, v6], now_s=0)
        controller = Controller()
        assert controller.catch_up(PodReports(ledgers, tmp_path / "reports.json")) <= 3
        assert len(controller.pods) == count
        assert all(len(addresses) == 2 for addresses in controller.pods.values())


def test_a_pod_whose_name_no_controller_takes_does_not_hold_up_the_others(tmp_path: Path) -> None:
    with opened(tmp_path) as ledgers:
        add(ledgers, "a")
        add(ledgers, "n" * 300)
        controller = Controller()
        controller.catch_up(PodReports(ledgers, tmp_path / "reports.json"))
        assert {name for _, name, _ in controller.pods} == {"a"}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "remove", "forget"]), st.integers(0, 5)),
        st.tuples(st.sampled_from(["tell", "lose answer", "lose report", "restart"]), st.just(0)),
        st.tuples(st.just("controller is restored"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
@example(
    [
        ("tell", 0),
        ("add", 0),
        ("controller is restored", 0),
        ("lose answer", 0),
        ("controller is restored", 0),
        ("forget", 0),
    ]
)
def test_whatever_is_lost_the_controller_knows_every_pod_in_the_end(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("node")
    with opened(folder) as ledgers:
        controller, backup = Controller(), Controller()
        book = PodReports(ledgers, folder / "reports.json")
        base: int | None = None
        ledger = ledgers.ledger("net")
        for step, number in steps:
            name = f"pod-{number}"
            if step == "add":
                ledger.reserve(sandbox(f"box-{name}"), pod(name), [WIDE, V6[:1]], now_s=0)
            elif step == "remove":
                ledger.release(sandbox(f"box-{name}"), now_s=0)
            elif step == "forget":
                ledger.forget(pod(name), now_s=0)
            elif step == "restart":
                book, base = PodReports(ledgers, folder / "reports.json"), controller.sequence
            elif step == "controller is restored":
                controller, backup = backup, controller  # with all that it has on its disk
                base = controller.sequence
            elif step == "tell":
                controller.catch_up(book, base)
                base = controller.sequence
            elif (report := book.report(base)) is not None and step == "lose answer":
                try:
                    controller.take(report)
                except RefusedError:
                    base = None
            book.changed()
        controller.catch_up(book, base)
        expected = {
            (key.namespace, key.pod, key.ifname): sorted(
                str(address) for address, each in ledger.bindings().items() if each.key == key
            )
            for key in {each.key for each in ledger.bindings().values()}
        }
        assert {("default", n, i): sorted(a) for (_, n, i), a in controller.pods.items()} == (
            expected
        )


# What a replaced machine's pods had


def kept(folder: Path, network: str = "net") -> dict[str, str]:
    ledger = open_ledger(folder / "networks" / network, network=network)
    found = {str(address): binding.key.pod for address, binding in ledger.bindings().items()}
    assert not ledger.holders()
    ledger.close()
    return found


def test_a_pod_gets_the_addresses_that_it_had_on_the_machine_before(tmp_path: Path) -> None:
    with opened(tmp_path / "old", "net", "other") as ledgers:
        add(ledgers, "a")
        expected = add(ledgers, "b")
        second = add(ledgers, "b", network="other", ifname="net1", box="box-b2")
        report = PodReports(ledgers, tmp_path / "reports.json").report(None)
    assert report is not None
    for _ in range(2):
        keep_bindings(tmp_path / "new" / "networks", report.pods)
    with opened(tmp_path / "new", "net", "other") as ledgers:
        ledgers.open_known()
        assert add(ledgers, "z") not in (expected, second)
        assert add(ledgers, "b", box="new") == expected
        assert add(ledgers, "b", network="other", ifname="net1", box="new2") == second


def test_what_is_held_or_kept_here_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as ledgers:
        held = add(ledgers, "here")
        mine = add(ledgers, "mine")
        ledgers.ledger("net").release(sandbox("box-mine"), now_s=0)
    keep_bindings(
        tmp_path / "networks",
        [
            InterfaceAddresses("net", "default", "thief", "eth0", (held[0], "10.0.0.6")),
            InterfaceAddresses("net", "default", "other", "eth0", (mine[1],)),
            InterfaceAddresses("net", "default", "mine", "eth0", ("10.0.0.5",)),
        ],
    )
    with opened(tmp_path) as ledgers:
        bindings = {str(at): each.key.pod for at, each in ledgers.ledger("net").bindings().items()}
        assert bindings == {
            **dict.fromkeys(held, "here"),
            **dict.fromkeys(mine, "mine"),
            "10.0.0.6": "thief",
        }
        assert ledgers.ledger("net").holders().keys() == {ip(address) for address in held}


def test_in_a_full_segment_pods_that_run_lose_theirs_after_those_that_had_ended(
    tmp_path: Path,
) -> None:
    ended = [
        InterfaceAddresses("net", "jobs", f"job-{number}", "eth0", (f"10.1.0.{number}",), kept=True)
        for number in range(3, 15)
    ]
    runs = InterfaceAddresses("net", "app", "web-0", "eth0", ("10.1.0.2",))
    keep_bindings(tmp_path, [runs, *ended])

    with contextlib.closing(Ledger.open(tmp_path / "net", "net")) as ledger:
        for number in range(len(ended)):
            holder, key = Holder(f"new-{number}", "eth0"), PodKey("app", f"new-{number}", "eth0")
            got = ledger.reserve(holder, key, [ranges("10.1.0.0/28")], now_s=1.0)
            assert got.leases[0].address.ip != ip("10.1.0.2")
        web = PodKey("app", "web-0", "eth0")
        got = ledger.reserve(Holder("web", "eth0"), web, [ranges("10.1.0.0/28")], now_s=1.0)
        assert (got.leases[0].address.ip, got.restored) == (ip("10.1.0.2"), True)


def test_of_two_addresses_of_one_family_both_are_kept(tmp_path: Path) -> None:
    had = ("10.0.0.3", "10.0.0.5", "fd00::4")
    keep_bindings(tmp_path / "networks", [InterfaceAddresses("net", "default", "a", "eth0", had)])
    assert kept(tmp_path) == dict.fromkeys(had, "a")


@pytest.mark.parametrize(
    "bad",
    [
        InterfaceAddresses("../etc", "default", "a", "eth0", ("10.0.0.2",)),
        InterfaceAddresses("net", "default", "a", "eth0", ("10.0.0.2.3", "")),
        InterfaceAddresses("net", "default", "a", "eth0", ("255.255.255.255",)),
        InterfaceAddresses("net", "", "", "eth0", ("10.0.0.2",)),
        InterfaceAddresses("net", "default", "gone", "eth0", ()),
    ],
)
def test_what_makes_no_sense_is_left_out(tmp_path: Path, bad: InterfaceAddresses) -> None:
    good = InterfaceAddresses("net", "default", "../b", "eth0", ("10.0.0.4",))
    keep_bindings(tmp_path / "networks", [bad, good])
    assert kept(tmp_path) == {"10.0.0.4": "../b"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["networks"]
    assert [path.name for path in (tmp_path / "networks").iterdir()] == ["net"]


# How full the segments are


def test_usage_counts_every_network_that_draws_on_a_segment(tmp_path: Path) -> None:
    v4, v6, spare = map(ip_network, ("10.9.0.0/24", "fd09::/64", "10.9.1.0/24"))
    sets = [(segment_range(v4),), (segment_range(v6),)]
    with opened(tmp_path, "one", "two") as ledgers:
        one, two = ledgers.ledger("one"), ledgers.ledger("two")
        for number in range(3):
            one.reserve(sandbox(f"one-{number}"), pod(f"a-{number}"), sets, now_s=0)
        two.reserve(sandbox("two"), pod("b"), sets[:1], requested=[ip("10.9.0.77")], now_s=0)
        one.release(sandbox("one-0"), now_s=0)
        assert segment_usage(ledgers, (v4, v6, spare)) == (
            SegmentUse(v4, 253, live=3, resting=0, bound=1),
            SegmentUse(v6, 2**64 - 2, live=2, resting=0, bound=1),
            SegmentUse(spare, 253, live=0, resting=0, bound=0),
        )
        assert segment_usage(ledgers, ()) == ()
