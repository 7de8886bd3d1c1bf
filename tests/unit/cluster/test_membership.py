"""What a node takes from others, and what it says of itself."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from limpet.base.bounds.members import (
    ABSENT_ADDRESSES,
    SEQUENCE,
    TOLD_POD_ADDRESSES,
    UNSIGNED_STEP,
)
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.identity import Identity
from limpet.cluster.keys import sign
from limpet.cluster.kinds import ABSENCE, KINDS, PODS
from limpet.cluster.kinds.pods import LabelledPod
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.membership import News
from limpet.cluster.merge import Changes
from limpet.cluster.replica import Outcome
from limpet.cluster.seal import read_sealed
from tests.beds.member import membership_of
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    presence,
    seal_grant,
    seal_network,
    seal_presence,
    told,
)

OWN = 1


def on_a_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: object, **named: object) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Beside:
    """A membership and what it told."""

    def __init__(self, folder: Path, *, boot_id: str = "boot") -> None:
        identity = Identity(folder, node_key(OWN), "node-1", PINNED, ("c:7470",))
        self.membership = membership_of(identity, boot_id=boot_id)
        self.news: list[News] = []
        self.published = asyncio.Event()
        self.membership.subscribe(self._take)

    def _take(self, news: News) -> None:
        self.news.append(news)
        if news.source is Source.SELF:
            self.published.set()

    def offer(self, *numbers: int, sequence: int | None = None, **changes: object) -> list[Outcome]:
        documents = [
            sealed for number in numbers for sealed in told(number, sequence=sequence, **changes)
        ]
        return self.membership.offer(documents, source=Source.CLOUD)

    def announce(self, address: str = "192.0.2.1") -> None:
        self.membership.announce(
            addresses=(ip_address(address),),
            port=7471,
            vtep_macs={4: "02:00:00:00:00:01"},
            link_mtu_bytes=1500,
        )

    async def announced(self, address: str = "192.0.2.1") -> Presence:
        self.published.clear()
        self.announce(address)
        await asyncio.wait_for(self.published.wait(), 10)
        assert self.membership.presence is not None
        return self.membership.presence


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    made = Beside(tmp_path)
    made.membership.offer([seal_network(network(), CLUSTER_KEY)], source=Source.CLOUD)
    made.news.clear()
    yield made
    made.membership.close()


def test_news_are_told_once_for_all_that_came_together(beside: Beside) -> None:
    assert beside.offer(2, 3) == [Outcome.FRESH, Outcome.FRESH]

    assert [len(news.uids) for news in beside.news] == [2]


@on_a_loop
async def test_what_a_later_limpet_on_this_node_said_more_is_said_no_more(beside: Beside) -> None:
    beside.offer(OWN)
    last = await beside.announced()
    body = msgspec.json.decode(seal_presence(last, node_key(OWN)).body)
    more = msgspec.json.encode({**body, "later": 1}, order="deterministic")
    sealed = Sealed("presence", more, sign("document presence", more, node_key(OWN)))
    changes = Changes(replace(beside.membership.replica.known, by_kind={}))
    for each in (*told(OWN), sealed):
        changes.take(read_sealed(each, KINDS))
    beside.membership.replica.known = changes.finish()[0]

    again = await beside.announced()
    assert again.sequence == last.sequence + 1
    beside.news.clear()
    beside.announce()
    assert beside.news == []


def test_what_is_known_is_stale_and_tells_nobody(beside: Beside) -> None:
    beside.offer(2, sequence=5)

    assert beside.offer(2, sequence=5) == [Outcome.STALE, Outcome.STALE]
    assert beside.offer(2, sequence=4) == [Outcome.STALE, Outcome.STALE]

    assert len(beside.news) == 1


def test_what_nobody_signed_changes_nothing(beside: Beside) -> None:
    forged = seal_grant(grant(2), node_key(9))

    outcomes = beside.membership.offer([forged], source=Source.NEIGHBOUR)

    assert outcomes == [Outcome.BAD]
    assert beside.membership.replica.counters["neighbour_bad"] == 1
    assert beside.membership.snapshot.nodes == {}


def test_a_network_of_another_cluster_is_not_taken(beside: Beside) -> None:
    foreign = seal_network(network(9), node_key(9))

    beside.membership.offer([foreign], source=Source.NEIGHBOUR)

    assert beside.membership.network == network()


def test_all_that_was_taken_is_there_after_a_restart(tmp_path: Path) -> None:
    first = Beside(tmp_path)
    first.membership.offer([seal_network(network(), CLUSTER_KEY)], source=Source.CLOUD)
    first.offer(1, 2, 3, sequence=3)
    first.membership.replica.file.durable().result()
    first.membership.close()

    second = Beside(tmp_path)

    assert second.membership.snapshot == first.membership.snapshot
    assert second.membership.replica.problems == []
    second.membership.close()


def test_a_tombstone_is_not_undone_by_the_old_grant(beside: Beside) -> None:
    beside.offer(2, sequence=3)
    beside.offer(2, tombstone=True, generation=2, revision=9)

    assert beside.offer(2, sequence=9, generation=8) == [Outcome.STALE, Outcome.STALE]

    assert beside.membership.snapshot.nodes[grant(2).uid].grant.tombstone


@on_a_loop
async def test_a_presence_is_published_once_until_it_changes(beside: Beside) -> None:
    beside.offer(1)

    first = await beside.announced()
    beside.announce()
    second = await beside.announced("192.0.2.77")

    assert (first.sequence, second.sequence) == (0, 1)
    assert second.addresses == (ip_address("192.0.2.77"),)
    assert beside.membership.replica.known.find(beside.membership.introduction) is not None


@on_a_loop
async def test_a_sequence_goes_on_after_a_restart(tmp_path: Path) -> None:
    first = Beside(tmp_path)
    first.membership.offer([seal_network(network(), CLUSTER_KEY)], source=Source.CLOUD)
    first.offer(1)
    before = await first.announced()
    first.membership.close()

    second = Beside(tmp_path, boot_id="another boot")
    after = await second.announced()

    assert after.sequence == before.sequence + 1
    second.membership.close()


@on_a_loop
async def test_a_restored_node_goes_on_above_what_others_know_of_it(beside: Beside) -> None:
    beside.offer(1)
    await beside.announced()

    beside.published.clear()
    beside.membership.offer(own_told(40, "a boot before"), source=Source.NEIGHBOUR)
    await asyncio.wait_for(beside.published.wait(), 10)

    assert beside.membership.presence is not None
    assert beside.membership.presence.sequence > 40
    assert beside.membership.presence.boot_id == "boot"
    assert not beside.membership.cloned


@on_a_loop
async def test_a_restored_node_that_hears_more_and_more_of_its_former_boots_is_no_clone(
    beside: Beside,
) -> None:
    """From one neighbour after the other, each of which knows something else."""
    beside.offer(1)
    for sequence in range(20, 80, 12):  # before the node has a link
        beside.membership.offer(own_told(sequence, f"{sequence}"), source=Source.NEIGHBOUR)
    await beside.announced()
    for sequence in range(90, 6000, 60):
        beside.membership.offer(own_told(sequence, f"{sequence}"), source=Source.NEIGHBOUR)

    assert not beside.membership.cloned
    assert beside.membership.presence is not None
    assert beside.membership.presence.sequence > 6000


@on_a_loop
async def test_a_machine_that_always_answers_above_us_is_a_clone(beside: Beside) -> None:
    beside.offer(1)
    await beside.announced()

    with capture_logs() as logs:
        for _ in range(4):
            assert beside.membership.presence is not None
            above = beside.membership.presence.sequence + 1
            beside.membership.offer(own_told(above, "the copy"), source=Source.NEIGHBOUR)

    assert beside.membership.cloned
    (told_once,) = [each for each in logs if "another machine has" in each["event"]]
    assert "reboot the machine" in told_once["what_to_do"], "an agent keeps its boot id"
    last = beside.membership.presence
    beside.announce("192.0.2.99")
    assert beside.membership.presence == last


@on_a_loop
async def test_a_node_whose_highest_sequence_was_used_up_says_so_and_joins_anew(
    beside: Beside, tmp_path: Path
) -> None:
    """Whoever did it has its key: with that nothing can be mended."""
    beside.offer(1)
    first = await beside.announced()

    beside.membership.offer(own_told(SEQUENCE.most, "the thief"), source=Source.NEIGHBOUR)

    assert beside.membership.cloned
    beside.announce("192.0.2.99")
    assert beside.membership.presence == first

    folder = tmp_path / "anew"
    folder.mkdir()
    identity = Identity(folder, node_key(9), "node-1", PINNED, ())
    anew = membership_of(
        identity,
        seal_network(network(), CLUSTER_KEY),
        seal_grant(grant(9, name="node-1", supersedes=(grant(1).uid,)), CLUSTER_KEY),
        seal_grant(grant(1, generation=2, revision=2, tombstone=True), CLUSTER_KEY),
    )
    published = asyncio.Event()
    anew.subscribe(lambda news: published.set() if news.source is Source.SELF else None)
    anew.announce(addresses=(), port=7471, vtep_macs={}, link_mtu_bytes=1500)
    await asyncio.wait_for(published.wait(), 10)
    assert anew.presence is not None
    anew.close()


@on_a_loop
async def test_of_pods_that_are_gone_a_node_tells_as_many_as_others_take(beside: Beside) -> None:
    beside.offer(1)
    many = ABSENT_ADDRESSES.most + 1

    beside.membership.announce_gone(f"10.0.{number >> 8}.{number & 255}" for number in range(many))

    (absence,) = beside.membership.replica.known.of(ABSENCE.name).values()
    assert len(absence.value.addresses) == ABSENT_ADDRESSES.most


@on_a_loop
async def test_a_sequence_near_the_highest_is_gone_on_above(beside: Beside) -> None:
    beside.offer(1)
    await beside.announced()
    beside.published.clear()

    beside.membership.offer(own_told(SEQUENCE.most - 11, "boot"), source=Source.NEIGHBOUR)
    await asyncio.wait_for(beside.published.wait(), 10)

    assert beside.membership.presence is not None
    assert beside.membership.presence.sequence == SEQUENCE.most - 1
    # What it has published can be read again, by others and from its own disk.
    found = beside.membership.replica.known.find(beside.membership.introduction)
    assert found is not None
    assert read_sealed(found.sealed, KINDS).version == SEQUENCE.most - 1


@on_a_loop
async def test_a_sequence_that_the_controller_tells_and_does_not_show_moves_a_node_so_far_only(
    beside: Beside,
) -> None:
    beside.offer(1)
    first = await beside.announced()

    beside.membership.jump_above(first.sequence + UNSIGNED_STEP.most + 1)
    assert beside.membership.presence == first

    beside.published.clear()
    beside.membership.jump_above(first.sequence + UNSIGNED_STEP.most)
    await asyncio.wait_for(beside.published.wait(), 10)
    assert beside.membership.presence is not None
    assert beside.membership.presence.sequence > UNSIGNED_STEP.most


@on_a_loop
async def test_a_node_that_lost_all_it_knew_goes_on_above_what_comes_with_its_grant(
    beside: Beside,
) -> None:
    beside.announce()

    beside.membership.offer(own_told(40, "a boot before"), source=Source.CLOUD)

    assert beside.membership.presence is not None
    assert beside.membership.presence.sequence > 40


@on_a_loop
async def test_what_others_knew_before_a_node_has_a_link_counts_when_it_has_one(
    beside: Beside,
) -> None:
    beside.offer(1)
    for _ in range(5):  # the same old news from each neighbour: no clone
        beside.membership.offer(own_told(40, "a boot before"), source=Source.NEIGHBOUR)

    announced = await beside.announced()

    assert announced.sequence > 40
    assert not beside.membership.cloned


@on_a_loop
async def test_a_presence_is_not_lost_to_an_older_one_of_the_same_offer(beside: Beside) -> None:
    beside.offer(1)
    await beside.announced()
    newer = seal_grant(grant(OWN, generation=2), CLUSTER_KEY)
    _, ahead = own_told(40, "a boot before")

    beside.membership.offer([newer, ahead], source=Source.NEIGHBOUR)

    assert beside.membership.presence is not None
    assert beside.membership.presence.sequence > 40
    assert beside.membership.grant is not None
    assert beside.membership.grant.generation == 2


def own_told(sequence: int, boot_id: str) -> list[Sealed]:
    return [
        seal_grant(grant(OWN), CLUSTER_KEY),
        seal_presence(presence(OWN, sequence, boot_id=boot_id), node_key(OWN)),
    ]


def test_a_listener_that_fails_keeps_nobody_from_the_news(beside: Beside) -> None:
    heard: list[News] = []

    def fail(_news: News) -> None:
        raise RuntimeError("a listener of a test")

    beside.membership.subscribe(fail)
    beside.membership.subscribe(heard.append)

    beside.offer(2)

    assert len(heard) == 1


@on_a_loop
async def test_pods_with_more_labels_than_neighbours_take_are_told_as_far_as_they_go(
    tmp_path: Path,
) -> None:
    """And none of what is told is refused."""
    beside = Beside(tmp_path)
    beside.offer(OWN)
    labels = {f"app.example/{number:050}": "v" * 63 for number in range(30)}
    pods = [
        LabelledPod("default", f"pod-{number:04}", (f"10.0.{number >> 8}.{number & 255}",), labels)
        for number in range(500)
    ]
    beside.membership.announce_pods(pods)
    documents = list(beside.membership.replica.known.of(PODS.name).values())
    told = {pod.name for each in documents for pod in each.value.pods}
    assert len(told) > 150
    for each in documents:
        assert read_sealed(each.sealed, KINDS).value == each.value
    beside.membership.announce_pods(pods[:100])
    told = {
        pod.name
        for each in beside.membership.replica.known.of(PODS.name).values()
        for pod in each.value.pods
    }
    assert len(told) == 100


@on_a_loop
async def test_a_pod_that_is_not_told_holds_back_none_and_the_log_says_so_once(
    tmp_path: Path,
) -> None:
    beside = Beside(tmp_path)
    beside.offer(OWN)
    large = {f"app.example/{number:050}": "v" * 63 for number in range(600)}
    first = LabelledPod("default", "a", ("10.0.0.1",), large)
    others = [LabelledPod("default", f"pod-{number:04}", (), {}) for number in range(300)]
    with capture_logs() as logs:
        for _ in range(2):
            beside.membership.announce_pods([first, *others])
        beside.membership.announce_pods(others)
        beside.membership.announce_pods(others)
    told = beside.membership.replica.known.of(PODS.name).values()

    assert {pod.name for each in told for pod in each.value.pods} == {x.name for x in others}
    assert [each["pods"] for each in logs if "pods" in each] == [1]


@on_a_loop
async def test_of_a_pod_with_more_addresses_than_are_taken_those_in_the_nodes_segments_are_told(
    tmp_path: Path,
) -> None:
    beside = Beside(tmp_path)
    beside.offer(OWN)
    foreign = tuple(f"10.88.{number}.7" for number in range(TOLD_POD_ADDRESSES.most))
    many = LabelledPod("default", "a", (*foreign, "10.244.1.5", "2001:db8::1"), {"app": "web"})
    beside.membership.announce_pods([many])

    (told,) = beside.membership.replica.known.of(PODS.name).values()
    assert read_sealed(told.sealed, KINDS).value == told.value
    (pod,) = told.value.pods
    assert pod.addresses[0] == "10.244.1.5"
    assert len(pod.addresses) == TOLD_POD_ADDRESSES.most
