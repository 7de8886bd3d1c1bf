"""List and watch ends with what the server has, whatever the server does in between."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.bounds.tenants import OBJECTS_OF_ONE
from limpet.kubernetes.kinds.objects import ConfigMap, Metadata, Resource
from limpet.kubernetes.reflector_state import (
    Check,
    Failure,
    ListPage,
    ObjectChanges,
    ReflectorState,
    Wait,
    Watch,
)
from limpet.kubernetes.watch_event import (
    ObjectDeleted,
    ObjectPut,
    Unreadable,
    WatchBookmark,
    WatchEnded,
    WatchEvent,
    read_event,
)

THINGS = Resource("Thing", "things", ConfigMap, "limpet.dev", "v1alpha1")
NAMES = "abcde"

Event = WatchEvent[ConfigMap]
Told = ObjectChanges[ConfigMap]


def thing(name: str, version: int, uid: str = "", namespace: str = "") -> ConfigMap:
    return ConfigMap(
        metadata=Metadata(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-{name}",
            resource_version=str(version),
        ),
        data={"version": str(version)},
    )


@dataclass
class Server:
    """An API server, as much of it as lists and watches see."""

    revision: int = 1
    compacted: int = 0
    objects: dict[str, ConfigMap] = field(default_factory=dict)
    history: list[tuple[int, Event]] = field(default_factory=list)
    snapshots: dict[int, list[ConfigMap]] = field(default_factory=dict)
    is_cache: bool = False
    """It answers with all that there are, whatever it was asked for."""

    def write(self, name: str) -> None:
        self.revision += 1
        uid = self.objects[name].metadata.uid if name in self.objects else f"uid-{self.revision}"
        self.objects[name] = thing(name, self.revision, uid)
        self.history.append((self.revision, ObjectPut(self.objects[name])))

    def delete(self, name: str) -> None:
        if name in self.objects:
            self.revision += 1
            uid = self.objects.pop(name).metadata.uid
            # What is told of it has the version of its deletion.
            self.history.append((self.revision, ObjectDeleted(thing(name, self.revision, uid))))

    def compact(self) -> None:
        self.compacted = self.revision
        self.snapshots.clear()

    def lose(self, writes: int) -> None:
        """Put back from a copy: what was written last has never been."""
        kept = self.history[: max(len(self.history) - writes, 0)]
        self.objects, self.history = {}, kept
        self.revision = kept[-1][0] if kept else 1
        self.compacted = min(self.compacted, self.revision)
        self.snapshots.clear()
        for _, event in kept:
            if isinstance(event, ObjectPut):
                self.objects[event.item.metadata.name] = event.item
            elif isinstance(event, ObjectDeleted):
                del self.objects[event.item.metadata.name]

    def page(self, step: ListPage) -> tuple[list[ConfigMap], int, str] | Failure:
        if step.go_on:
            revision, start = map(int, step.go_on.split("."))
            if revision not in self.snapshots:
                return Failure.GONE
        else:
            revision, start = self.revision, 0
            self.snapshots[revision] = [self.objects[name] for name in sorted(self.objects)]
        found = self.snapshots[revision]
        end = len(found) if self.is_cache else start + step.limit
        return found[start:end], revision, f"{revision}.{end}" if end < len(found) else ""

    def events(self, step: Watch) -> list[Event] | Failure:
        since = int(step.resource_version)  # one that is not there yet is no error here
        if since < self.compacted:
            return Failure.GONE
        return [event for revision, event in self.history if revision > since]


@dataclass
class World:
    """A server and who follows it, on a clock of their own."""

    mirror: bool
    server: Server = field(default_factory=Server)
    now_s: float = 0.0
    has: dict[str, ConfigMap] = field(default_factory=dict)
    deleted_told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.state: ReflectorState[ConfigMap] = ReflectorState(mirror=self.mirror, page=2)

    def take(self, told: Told) -> None:
        for _, name in told.gone:
            self.has.pop(name, None)
        for item in told.put:
            self.has[item.metadata.name] = item

    def step(self, random: float, *, most: int = 1000, broken: bool = False) -> bool:
        """Does what is due; whether there was nothing new. `broken`: it fails half way."""
        step = self.state.next_step(self.now_s, random)
        if isinstance(step, Wait):
            assert step.until_s - self.now_s <= 37.5
            self.now_s = step.until_s
            return False
        if isinstance(step, ListPage):
            page = self.server.page(step)
            if isinstance(page, Failure) or (broken and not self.server.is_cache):
                self.fail(page if isinstance(page, Failure) else Failure.OTHER, random)
                return False
            items, revision, go_on = page
            version = str(revision)
            for start in range(0, max(len(items), 1), step.limit):
                part = items[start : start + step.limit]
                more = start + step.limit < len(items)
                self.take(
                    self.state.take_page(part, [], resource_version=version, go_on=go_on, more=more)
                )
                if more and broken:
                    self.fail(Failure.OTHER, random)
                    return False
            return False
        if isinstance(step, Check):
            if broken or int(step.resource_version) > self.server.revision:
                self.fail(Failure.OTHER if broken else Failure.FUTURE, random)
            else:
                self.state.take_check()
            return False
        events = self.server.events(step)
        if isinstance(events, Failure):
            self.fail(events, random)
            return False
        together: Told = ObjectChanges()
        for event in events[:most]:
            if isinstance(event, ObjectDeleted):
                self.deleted_told.add(event.item.metadata.name)
            together = together.then(self.state.take_event(event))
        self.take(together)
        if broken:
            self.fail(Failure.OTHER, random)
        else:
            self.state.watch_ended(self.now_s, random, lived_s=10.0)
        return not events

    def fail(self, failure: Failure, random: float) -> None:
        self.state.fail(failure, self.now_s, random)

    def settle(self) -> None:
        for _ in range(300):
            if self.step(0.5):
                return
        raise AssertionError("it never comes to rest")


deeds = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(NAMES)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
        st.tuples(st.just("compact"), st.just("")),
        st.tuples(st.just("lose"), st.integers(1, 4)),
        st.tuples(st.just("step"), st.tuples(st.integers(0, 3), st.booleans())),
    ),
    max_size=40,
)


def play(world: World, done: list[tuple[str, object]], random: float) -> None:
    server = world.server
    for deed, value in done:
        match deed, value:
            case "write", str(name):
                server.write(name)
            case "delete", str(name):
                server.delete(name)
            case "compact", _:
                server.compact()
            case "lose", int(writes):
                server.lose(writes)
            case "step", (int(most), bool(broken)):
                world.step(random, most=most, broken=broken)


@given(deeds, st.floats(0, 0.999), st.booleans())
def test_a_mirror_has_in_the_end_what_the_server_has(
    done: list[tuple[str, object]], random: float, is_cache: bool
) -> None:
    world = World(mirror=True, server=Server(is_cache=is_cache))
    play(world, [deed for deed in done if deed[0] != "lose"], random)

    world.settle()

    assert world.has == world.server.objects


@given(deeds, st.floats(0, 0.999))
def test_a_mirror_of_a_restored_server_has_its_objects_once_it_lists(
    done: list[tuple[str, object]], random: float
) -> None:
    """Before that nobody can tell: a version may be used a second time."""
    world = World(mirror=True)
    play(world, done, random)

    world.fail(Failure.FUTURE, random)
    world.settle()

    assert world.has == world.server.objects


def test_after_a_failure_the_server_is_asked_whether_it_was_put_back() -> None:
    """An API server is silent to who watches from a version that is not there yet."""
    world = World(mirror=True)
    world.server.write("a")
    world.server.write("b")
    world.settle()
    world.server.lose(1)

    world.fail(Failure.OTHER, 0.5)
    world.settle()

    assert list(world.has) == ["a"]


@given(deeds, st.floats(0, 0.999))
def test_who_takes_what_is_told_loses_only_what_was_deleted(
    done: list[tuple[str, object]], random: float
) -> None:
    world = World(mirror=False)
    ever: set[str] = set()
    take = world.take

    def noting(told: Told) -> None:
        ever.update(item.metadata.name for item in told.put)
        take(told)

    world.take = noting  # type: ignore[method-assign]
    play(world, done, random)
    world.settle()

    assert ever - world.has.keys() <= world.deleted_told


@given(st.lists(st.sampled_from([Failure.GONE, Failure.FUTURE, Failure.OTHER]), min_size=1))
def test_who_fails_again_and_again_asks_ever_more_seldom(failures: list[Failure]) -> None:
    state: ReflectorState[ConfigMap] = ReflectorState(mirror=True)
    now_s, pauses = 0.0, []
    for failure in failures:
        if isinstance(state.next_step(now_s, 0.0), ListPage):
            # A cache whose list is too old to be watched.
            state.take_page([], [], resource_version="1", go_on="")
        state.fail(failure, now_s, 0.0)
        step = state.next_step(now_s, 0.0)
        assert isinstance(step, Wait)
        pauses.append(step.until_s - now_s)
        now_s = step.until_s
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.5
    assert pauses[-1] <= 15.0


def test_the_server_says_when_to_come_back_and_a_changed_link_comes_at_once() -> None:
    state: ReflectorState[ConfigMap] = ReflectorState(mirror=False)

    state.fail(Failure.OTHER, 100.0, 0.0, retry_after_s=20.0)

    assert state.next_step(100.0, 0.0) == Wait(120.0)
    state.moved()
    assert state.next_step(100.0, 0.0) == ListPage("", 100)


def test_who_lists_too_slowly_for_the_server_asks_for_more_at_a_time() -> None:
    state: ReflectorState[ConfigMap] = ReflectorState(mirror=True, page=100)
    state.take_page([thing("a", 1)], [], resource_version="9", go_on="on")
    assert state.next_step(0.0, 0.0) == ListPage("on", 100)

    state.fail(Failure.GONE, 0.0, 0.0)

    assert state.next_step(9.0, 0.0) == ListPage("", 200)
    state.fail(Failure.TOO_LARGE, 9.0, 0.0)
    assert state.next_step(9.0, 0.0) == ListPage("", 50)


def test_changes_that_were_not_taken_are_told_again() -> None:
    state: ReflectorState[ConfigMap] = ReflectorState(mirror=True)
    state.take_page([thing("a", 1), thing("b", 1)], [], resource_version="5", go_on="")
    gone = state.take_event(ObjectDeleted(thing("a", 6)))

    state.begin_again(gone)

    told = state.take_page([thing("b", 1)], [], resource_version="6", go_on="")
    assert (told.gone, told.put) == ([("", "a")], [thing("b", 1)])


def test_an_object_that_cannot_be_read_any_more_is_not_gone() -> None:
    state: ReflectorState[ConfigMap] = ReflectorState(mirror=True)
    state.take_page([thing("a", 1)], [], resource_version="5", go_on="")
    state.fail(Failure.GONE, 0.0, 0.0)

    told = state.take_page([], [Unreadable("a", "bad")], resource_version="6", go_on="")

    assert told.gone == []


def test_an_object_that_cannot_be_read_is_gone_once_it_is_deleted() -> None:
    state: ReflectorState[ConfigMap] = ReflectorState(mirror=True)
    thing_of = {"metadata": {"name": "a", "namespace": "shop", "uid": "1", "resourceVersion": "1"}}
    state.take_event(read_event(line("ADDED", thing_of), THINGS))
    broken = {**thing_of, "data": 7}

    kept = state.take_event(read_event(line("MODIFIED", broken), THINGS))
    gone = state.take_event(read_event(line("DELETED", broken), THINGS))

    assert (kept.gone, gone.gone) == ([], [("shop", "a")])
    assert [(x.namespace, x.is_gone) for x in (*kept.unreadable, *gone.unreadable)] == [
        ("shop", False),
        ("shop", True),
    ]


def test_of_an_object_that_could_never_be_read_it_is_told_when_it_is_gone() -> None:
    unreadable = Unreadable("a", "bad", "5", "shop")
    for deletes in (True, False):
        state: ReflectorState[ConfigMap] = ReflectorState(mirror=True)
        state.take_page([], [unreadable], resource_version="5", go_on="")
        if deletes:
            told = state.take_event(ObjectDeleted(thing("a", 6, namespace="shop")))
        else:
            state.fail(Failure.GONE, 0.0, 0.0)
            told = state.take_page([], [], resource_version="6", go_on="")
        assert told.gone == [("shop", "a")]


def test_another_object_under_a_name_takes_the_first_ones_place() -> None:
    state: ReflectorState[ConfigMap] = ReflectorState(mirror=True)
    state.take_page([thing("a", 1, "one")], [], resource_version="5", go_on="")
    state.fail(Failure.GONE, 0.0, 0.0)

    told = state.take_page([thing("a", 7, "two")], [], resource_version="7", go_on="")

    assert (told.gone, told.put) == ([("", "a")], [thing("a", 7, "two")])


# Lines


def line(kind: str, value: object) -> bytes:
    return json.dumps({"type": kind, "object": value}).encode()


def test_lines_of_a_watch_are_read() -> None:
    written = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "4"}, "data": {"x": "y"}}
    item = ConfigMap(metadata=Metadata(name="a", uid="u", resource_version="4"), data={"x": "y"})

    assert read_event(line("ADDED", written), THINGS) == ObjectPut(item)
    assert read_event(line("MODIFIED", written), THINGS) == ObjectPut(item)
    assert read_event(line("DELETED", written), THINGS) == ObjectDeleted(item)
    marked = {"kind": "Thing", "metadata": {"resourceVersion": "9", "creationTimestamp": None}}
    assert read_event(line("BOOKMARK", marked), THINGS) == WatchBookmark("9")
    refused = read_event(line("ERROR", {"code": 410, "reason": "Expired"}), THINGS)
    assert isinstance(refused, WatchEnded)
    assert refused.status.code == 410
    nonsense = {"metadata": {"name": "a", "resourceVersion": "5"}, "data": [1]}
    assert isinstance(found := read_event(line("ADDED", nonsense), THINGS), Unreadable)
    assert (found.name, found.resource_version) == ("a", "5")


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["type", "object", "metadata", "name", "ADDED", "code", "data"])
                | st.text(),
                inner,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_whatever_a_line_is_it_is_read_or_refused(garbage: bytes) -> None:
    with contextlib.suppress(ValueError):
        read_event(garbage, THINGS)


def test_a_namespace_with_very_many_objects_leaves_room_for_others() -> None:
    """What is not told is named, so that who hears it can close what it does not know."""
    state = ReflectorState[ConfigMap](mirror=True)
    most = OBJECTS_OF_ONE.most
    many = [thing(f"t{number}", 1, namespace="many") for number in range(most + 2)]
    few = thing("x", 1, namespace="few")

    told = state.take_page([*many, few], (), resource_version="1", go_on="")

    assert told.put == [*many[:most], few]
    names = [("many", f"t{most}"), ("many", f"t{most + 1}")]
    assert told.crowded == dict.fromkeys(names, "namespace many has more than 65,536 objects")
    more = state.take_event(ObjectPut(thing("y", 2, namespace="many")))
    assert list(more.crowded) == [("many", "y")]
    odd = state.take_event(Unreadable("z", "nonsense", namespace="many", resource_version="3"))
    assert list(odd.crowded) == [("many", "z")]
    assert not odd.unreadable
    state.take_event(ObjectDeleted(many[0]))
    assert state.take_event(ObjectPut(many[-1])).put == [many[-1]]


def test_what_cannot_be_read_keeps_nothing_of_that_name_in_another_namespace() -> None:
    """A tenant would have others' objects go on that were deleted while nobody listened."""
    state: ReflectorState[ConfigMap] = ReflectorState(mirror=True)
    web = thing("web", 1, namespace="shop")
    state.take_page([web], [], resource_version="1", go_on="")
    state.list_again()
    unread = Unreadable("web", "labels", namespace="other")
    assert state.take_page([], [unread], resource_version="2", go_on="").gone == [("shop", "web")]


def test_what_is_gone_by_the_same_news_is_neither_crowded_nor_unreadable() -> None:
    before: Told = ObjectChanges(
        unreadable=[Unreadable(name, "bad", namespace="shop") for name in ("odd", "odder")],
        crowded={("shop", "a"): "too many", ("shop", "b"): "too many"},
    )
    told = before.then(ObjectChanges(gone=[("shop", "odd"), ("shop", "a")]))
    assert [each.name for each in told.unreadable] == ["odder"]
    assert [*told.crowded] == [("shop", "b")]


def test_what_can_be_read_by_later_news_is_neither_crowded_nor_unreadable() -> None:
    before: Told = ObjectChanges(
        unreadable=[Unreadable("odd", "bad", namespace="shop")],
        crowded={("shop", "a"): "too many"},
    )
    good = [thing(name, 2, namespace="shop") for name in ("odd", "a")]
    told = before.then(ObjectChanges(put=good))
    assert told.put == good
    assert not told.unreadable
    assert not told.crowded


def test_the_deletion_of_what_had_no_room_is_told() -> None:
    """Who hears of it may have kept it from before, and goes on with it until then."""
    state = ReflectorState[ConfigMap](mirror=True)
    many = [thing(f"t{number}", 1, namespace="many") for number in range(OBJECTS_OF_ONE.most + 2)]
    told = state.take_page(many, (), resource_version="1", go_on="")
    assert [*told.crowded] == [("many", each.metadata.name) for each in many[-2:]]

    assert state.take_event(ObjectDeleted(many[-1])).gone == [("many", many[-1].metadata.name)]
    odd = Unreadable(many[-2].metadata.name, "nonsense", "3", "many", is_gone=True)
    assert state.take_event(odd).gone == [("many", many[-2].metadata.name)]
    # Nothing has become free by that: one more still has no room.
    assert state.take_event(ObjectPut(many[-1])).crowded
