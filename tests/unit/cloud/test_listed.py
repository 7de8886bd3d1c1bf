"""What an API server has of one kind, as it tells of it: part by part, by watches, and anew."""

from __future__ import annotations

from limpet.cloud.workloads.listed import Listed
from limpet.kubernetes.kinds.objects import Metadata, Viewed
from limpet.kubernetes.reflector_state import ObjectChanges
from limpet.kubernetes.watch_event import Unreadable


def told(*names: str, listed: bool = False, gone: str = "") -> ObjectChanges[Viewed]:
    put = [Viewed(metadata=Metadata(namespace="shop", name=each)) for each in names]
    return ObjectChanges(put, [("shop", each) for each in gone], listed=listed)


def test_all_that_parts_of_a_list_have_told_is_there_and_nothing_of_an_earlier_list() -> None:
    listed: Listed = Listed()

    assert listed.hear(told("a", "b")) is None
    assert listed.hear(told("c", listed=True)) == {("shop", each) for each in "abc"}
    assert listed.hear(told("d")) is None
    # Another connection's mirror does not know that c was there.
    assert listed.hear(told("a", gone="d", listed=True)) == {("shop", "a")}


def test_what_cannot_be_read_is_there_and_a_list_of_it_alone_has_nothing_to_go_by() -> None:
    listed: Listed = Listed()
    odd = Unreadable("a", "nonsense", namespace="shop")

    assert listed.hear(ObjectChanges(unreadable=[odd], listed=True)) == {("shop", "a")}
    assert not listed.some
    assert listed.hear(told("b", listed=True)) == {("shop", "b")}
    assert listed.some


def test_what_cannot_be_read_and_goes_is_forgotten_however_long_no_whole_list_comes() -> None:
    listed: Listed = Listed()
    odd = Unreadable("a", "nonsense", namespace="shop")
    for _ in range(3):
        listed.hear(ObjectChanges(unreadable=[odd]))
        listed.hear(told(gone="a"))
    assert listed.hear(told("b", listed=True)) == {("shop", "b")}


def test_of_what_has_no_room_that_is_there_which_is_kept() -> None:
    listed: Listed = Listed()
    crowded = dict.fromkeys((("shop", "old"), ("shop", "new")), "too many")
    found = listed.hear(
        ObjectChanges(crowded=crowded, listed=True), lambda key: key == ("shop", "old")
    )
    assert found == {("shop", "old")}
