from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from limpet.agent.serving.taken_back import TakenBack
from limpet.cluster.documents import Document, Source
from limpet.cluster.identity import Identity
from limpet.cluster.kinds import ABSENCE, PODS
from limpet.cluster.kinds.absence import Absence
from limpet.cluster.kinds.pods import LabelledPod
from limpet.cluster.membership import Membership
from limpet.cluster.seal import seal
from tests.beds.member import membership_of
from tests.unit.cluster_values import CLUSTER_KEY, PINNED, network, node_key, seal_network, told

WEB = LabelledPod("shop", "web", ("10.244.1.5",), {"app": "web"})


def run(folder: Path, scenario: Callable[[Membership], None]) -> None:
    async def play() -> None:
        identity = Identity(folder, node_key(1), "node-1", PINNED, ())
        member = membership_of(identity, seal_network(network(), CLUSTER_KEY), *told(1))
        scenario(member)
        member.close()

    asyncio.run(play())


def said(member: Membership) -> Mapping[str, Any]:
    found: list[Document] = [
        *member.replica.known.of(PODS.name).values(),
        *member.replica.known.of(ABSENCE.name).values(),
    ]
    return {
        each.kind: each.value.pods if each.kind == PODS.name else each.value.addresses
        for each in found
    }


@pytest.mark.parametrize(
    ("of_gone", "of_labels"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_what_was_said_of_pods_is_taken_back_where_nobody_looks_after_it_any_more(
    tmp_path: Path, of_gone: bool, of_labels: bool
) -> None:
    def scenario(member: Membership) -> None:
        member.announce_pods([WEB])
        member.announce_gone(["10.244.1.9"])
        TakenBack(member, of_gone=of_gone, of_labels=of_labels).look()
        assert said(member) == {
            PODS.name: () if of_labels else (WEB,),
            ABSENCE.name: () if of_gone else ("10.244.1.9",),
        }

    run(tmp_path, scenario)


def test_also_what_neighbours_bring_back_after_the_disk_was_put_back(tmp_path: Path) -> None:
    def scenario(member: Membership) -> None:
        taken_back = TakenBack(member, of_gone=True, of_labels=True)
        member.replica.subscribe(lambda _change: taken_back.look())
        taken_back.look()
        assert said(member) == {}
        before = seal(ABSENCE, Absence(member.uid, 7, ("10.244.1.9",)), node_key(1)).sealed
        member.offer([before], source=Source.NEIGHBOUR)
        assert said(member) == {ABSENCE.name: ()}
        (again,) = member.replica.known.of(ABSENCE.name).values()
        assert again.version == 8

    run(tmp_path, scenario)
