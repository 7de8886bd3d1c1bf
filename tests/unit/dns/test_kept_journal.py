"""Services as names are told of them: the file on the disk, and what was heard since."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cloud.workloads.change_journal import ChangeJournal
from limpet.dns.kept_services import KeptServices
from limpet.services.catalog import Catalog, Item
from limpet.services.kept import JOURNAL_FILE, encode_gone, encode_item, encode_items
from limpet.services.values import Endpoint, EndpointSlice, Service

PUT, GONE, LOOK = "put", "gone", "look"
SNAPSHOT, WRITE, FORGET = "snapshot", "write", "forget"
AGENT = "the agent starts"
steps = st.lists(
    st.tuples(
        st.sampled_from((PUT, PUT, GONE, LOOK, LOOK, SNAPSHOT, WRITE, FORGET, AGENT)),
        st.booleans(),
        st.integers(0, 2),
        st.integers(1, 9),
    ),
    max_size=30,
)


class Node:
    """What an agent does with what it hears, and the process that follows."""

    def __init__(self, folder: Path) -> None:
        self.kept = KeptServices(folder, folder)
        self.catalog = Catalog()
        self.journal = ChangeJournal(folder / JOURNAL_FILE)
        self._snapshot: tuple[list[Item], int] | None = None
        """What is about to be written, and how much of the journal that makes needless."""
        self._needless: int | None = None
        """The same once it is written."""
        self._written = 0
        """How often the file was; its time."""
        self.take()
        self.write()

    @property
    def is_settled(self) -> bool:
        """Nothing is written just now."""
        return self._snapshot is None and self._needless is None

    def put(self, item: Item) -> None:
        if self.catalog.put(item):
            self.journal.note([encode_item(item)])

    def remove(self, item: Item) -> None:
        kind = Service if isinstance(item, Service) else EndpointSlice
        catalog = self.catalog
        remove = catalog.remove_service if kind is Service else catalog.remove_slice
        if remove(*item.key):
            self.journal.note([encode_gone(kind, item.key)])

    def take(self) -> None:
        self._snapshot = [*self.catalog, *self.catalog.all_slices()], self.journal.end

    def write(self) -> None:
        if self._snapshot is None:
            return
        items, self._needless = self._snapshot
        self._snapshot = None
        self._written += 1
        fresh = self.kept.path.with_suffix(".new")
        fresh.write_bytes(encode_items(items))
        os.utime(fresh, ns=(self._written, self._written))
        fresh.rename(self.kept.path)

    def forget(self) -> None:
        if self._needless is not None:
            self.journal.forget(self._needless)
            self._needless = None

    def begin_agent(self) -> None:
        self.journal = ChangeJournal(self.kept.journal_path)
        self.journal.replay(Catalog())
        self._snapshot = self._needless = None

    def is_told(self) -> bool:
        """Names are as the agent has heard."""
        self.kept.read()
        return sorted(map(encode_item, _all(self.kept.catalog))) == sorted(
            map(encode_item, _all(self.catalog))
        )


def _all(catalog: Catalog) -> list[Item]:
    return [*catalog, *catalog.all_slices()]


def item(is_service: bool, number: int, value: int) -> Item:
    if is_service:
        return Service("shop", f"web-{number}", cluster_ips=(f"10.96.0.{value}",))
    ends = (Endpoint(f"10.1.0.{value}"),)
    return EndpointSlice("shop", f"piece-{number}", "web-0", 4, (), ends)


@given(steps)
def test_names_are_as_was_heard_last_whatever_is_on_the_disk_by_then(
    heard: Sequence[tuple[str, bool, int, int]],
) -> None:
    with TemporaryDirectory() as folder:
        node = Node(Path(folder))
        for what, is_service, number, value in heard:
            match what:
                case "put":
                    node.put(item(is_service, number, value))
                case "gone":
                    node.remove(item(is_service, number, value))
                case "look":
                    assert node.is_told()
                case "snapshot" if node.is_settled:
                    node.take()
                case "write":
                    node.write()
                case "forget":
                    node.forget()
                case "the agent starts":
                    node.begin_agent()
        assert node.is_told()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_change_is_told_before_it_is_on_the_disk_and_alone(node: Node) -> None:
    node.kept.read()
    node.put(item(True, 1, 1))
    assert node.kept.read() == {("shop", "web-1")}
    assert node.kept.read() is None
    node.put(item(True, 2, 1))
    assert node.kept.read() == {("shop", "web-2")}


def test_without_the_file_nothing_is_known_whatever_came_since(node: Node) -> None:
    """The journal may lack what it had no room for."""
    node.kept.path.unlink()
    node.put(item(True, 1, 1))
    assert node.kept.read() is None


def test_nonsense_ends_what_came_since_until_the_file_says_the_rest(node: Node) -> None:
    node.put(item(True, 1, 1))
    node.journal.note([b"nonsense"])
    node.put(item(True, 2, 2))
    node.kept.read()
    assert [each.name for each in node.kept.catalog] == ["web-1"]
    assert node.kept.read() is None
    node.take()
    node.write()
    node.kept.read()
    node.forget()
    assert node.is_told()


def test_a_change_that_is_written_just_now_is_taken_when_it_is_whole(node: Node) -> None:
    line = encode_item(item(True, 1, 1)) + b"\n"
    path = node.kept.journal_path
    node.kept.read()
    path.write_bytes(line[:20])
    assert node.kept.read() is None
    path.write_bytes(line)
    assert node.kept.read() == {("shop", "web-1")}


def test_a_journal_that_is_gone_leaves_what_is_on_the_disk(node: Node) -> None:
    node.put(item(True, 1, 1))
    node.take()
    node.write()
    node.put(item(True, 1, 2))
    node.put(item(True, 2, 2))
    assert node.is_told()
    node.kept.journal_path.unlink()
    assert node.kept.read() == {("shop", "web-1"), ("shop", "web-2")}
    assert [each.cluster_ips for each in node.kept.catalog] == [("10.96.0.1",)]
