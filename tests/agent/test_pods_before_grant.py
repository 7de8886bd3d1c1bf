"""What a node tells of its pods comes by another road than the controller's grant of the segment
that they are in: whichever is first, both count in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from limpet.agent.answers.verbs import Admin
from limpet.agent.happenings.of_node import NodeHappenings
from limpet.agent.node_state import NodeInCluster
from limpet.agent.original_sysctls import SYSCTLS_FILE, OriginalSysctls
from limpet.agent.policies.of_cluster import ClusterPolicies
from limpet.agent.policies.slot import PolicySlot
from limpet.agent.policies.words import UNHEARD
from limpet.agent.serving.gone_pods import GonePods
from limpet.agent.settings import Settings
from limpet.base.addresses import Prefix
from limpet.base.settings import PodSettings
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.identity import Identity
from limpet.cluster.kinds import ABSENCE, PODS
from limpet.cluster.kinds.absence import Absence
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.pods import LabelledPod, LabelledPods
from limpet.cluster.membership import Membership
from limpet.cluster.seal import seal
from limpet.cni.ledgers import Ledgers
from limpet.cni.repair import Repair
from limpet.cni.verbs import Node
from limpet.datapath.event import PodsChanged
from limpet.datapath.loop import Loop
from limpet.datapath.node.part import NodePart
from limpet.datapath.node.pod.announcer import Announcer
from limpet.datapath.node.pod.attachments import Attachments
from limpet.datapath.node.pod.guards import PodGuards
from limpet.datapath.node.pod.keeper import PodKeeper
from limpet.datapath.node.pod.reaper import Reaper
from limpet.datapath.node.ports.part import PortPart
from limpet.ipam.leases import Holder, PodKey, Range
from limpet.policies.policy import Key, PolicyPod
from tests.beds.descriptors import room_for_descriptors
from tests.beds.member import membership_of
from tests.beds.namespaces import NetnsFactory
from tests.beds.node_bed import NodeBed
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    seal_grant,
    seal_network,
)
from tests.waiting import until

FIRST, OTHER = grant(2), 2
HERE = "10.244.77.9"
"""In the segment that the other node is granted later."""


def granted(segments: Iterable[Prefix], generation: int) -> Sealed:
    told = replace(
        FIRST,
        segments=tuple(segments),
        generation=FIRST.generation + generation,
        revision=FIRST.revision + generation,
    )
    return seal_grant(told, CLUSTER_KEY)


@pytest.fixture
def member(tmp_path: Path) -> Iterable[Membership]:
    grants = [seal_grant(grant(number), CLUSTER_KEY) for number in (1, OTHER)]
    identity = Identity(tmp_path, node_key(1), "node-1", PINNED, ())
    member = membership_of(identity, seal_network(network(), CLUSTER_KEY), *grants)
    yield member
    member.close()


def wider() -> Sealed:
    return granted((*FIRST.segments, ip_network("10.244.77.0/24")), 1)


def test_a_gone_pod_counts_when_its_segment_is_granted_and_no_more_when_it_is_taken(
    member: Membership,
) -> None:
    told: list[frozenset[str]] = []

    async def scenario() -> None:
        gone = GonePods(
            member, endpoints=list, attached=list, changed=lambda: told.append(gone.addresses)
        )
        gone.begin()
        member.replica.subscribe(gone.hear)
        absent = seal(ABSENCE, Absence(FIRST.uid, 1, (HERE,)), node_key(OTHER)).sealed
        member.offer([absent], source=Source.NEIGHBOUR)
        assert not told

        member.offer([wider()], source=Source.CLOUD)
        assert told == [{HERE}]
        member.offer([granted(FIRST.segments, 2)], source=Source.CLOUD)
        assert told[1:] == [frozenset()]
        gone.close()

    asyncio.run(scenario())


def test_a_pod_that_labels_choose_has_its_address_when_its_segment_is_granted(
    member: Membership, make_netns: NetnsFactory, tmp_path: Path
) -> None:
    web = LabelledPod("shop", "web-0", (HERE,), {"app": "web"})
    pods = seal(PODS, LabelledPods(FIRST.uid, 3, 1, (web,)), node_key(OTHER)).sealed

    with make_netns("policies").entered():
        loop = Loop()
        policies = ClusterPolicies(loop, tmp_path / "own.json", [], lambda _: "", member)
        member.replica.subscribe(policies.hear)

        def addresses() -> list[str]:
            return [str(x) for x in policies._world({}).pods[Key("shop", "web-0")].addresses]

        member.offer([pods], source=Source.NEIGHBOUR)
        assert addresses() == []
        member.offer([wider()], source=Source.CLOUD)
        assert addresses() == [HERE]
        member.offer([granted(FIRST.segments, 2)], source=Source.CLOUD)
        assert addresses() == []
        policies.close()
        loop.close()


def test_another_nodes_pod_with_the_name_of_one_of_this_node_is_a_peer_too(
    member: Membership, make_netns: NetnsFactory, tmp_path: Path
) -> None:
    web = Key("shop", "web-0")
    theirs = str(FIRST.segments[0][9])
    told = (LabelledPod(*web, (theirs,), {"app": "web"}),)
    pods = seal(PODS, LabelledPods(FIRST.uid, 3, 1, told), node_key(OTHER)).sealed
    own = PolicyPod(web, (ip_address("10.244.1.7"),), {"app": "client"})

    with make_netns("policies").entered():
        loop = Loop()
        policies = ClusterPolicies(loop, tmp_path / "own.json", [], lambda _: "", member)
        member.replica.subscribe(policies.hear)
        member.offer([pods], source=Source.NEIGHBOUR)

        found = policies._world({web: own}).pods
        assert found[web] == own
        assert {str(each.addresses[0]): each.labels for each in found.values()} == {
            "10.244.1.7": {"app": "client"},
            theirs: {"app": "web"},
        }
        policies.close()
        loop.close()


def test_pods_are_closed_while_the_clusters_policies_may_not_all_be_here(
    member: Membership, make_netns: NetnsFactory, tmp_path: Path
) -> None:
    pod = Key("shop", "web-0")
    here = {pod: PolicyPod(pod, (ip_address("10.244.1.2"),), {})}
    member.replica.has_heard_all = False

    async def scenario() -> None:
        loop = Loop()
        policies = ClusterPolicies(loop, tmp_path / "own.json", [], lambda _: "", member)
        member.replica.subscribe(policies.hear)

        (closing,) = policies._world(here).policies.values()
        assert closing.key.namespace == "shop"
        assert closing.directions == frozenset({"ingress", "egress"})
        assert UNHEARD in policies.problems
        await member.replica.hear_all()
        assert policies._world(here).policies == {}
        assert UNHEARD not in policies.problems
        policies.close()
        loop.close()

    with make_netns("policies").entered():
        asyncio.run(scenario())


def test_a_pod_is_gone_only_when_it_could_be_looked_for(
    member: Membership, capsys: pytest.CaptureFixture[str]
) -> None:
    address = str(grant(1).segments[0][9])
    said = ""

    def is_said() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "endpoints whose pods may be gone are left as they are" in said

    async def scenario() -> None:
        gone = GonePods(member, endpoints=lambda: [address], attached=list, changed=lambda: None)
        with room_for_descriptors(0):
            gone.look_soon()
            await until(is_said)
        assert gone.addresses == frozenset()
        await until(lambda: gone.addresses == {address})
        gone.close()

    asyncio.run(scenario())


THIRD = grant(3)


def taken_over() -> Sealed:
    """A later grant of another node has the segment of the first."""
    segments = (*THIRD.segments, *FIRST.segments)
    return seal_grant(replace(THIRD, segments=segments, generation=2, revision=9), CLUSTER_KEY)


def test_who_has_lost_a_segment_to_a_later_grant_says_nothing_of_pods_in_it(
    member: Membership, make_netns: NetnsFactory, tmp_path: Path
) -> None:
    address = str(FIRST.segments[0][9])
    web = LabelledPod("shop", "web-0", (address,), {"app": "web"})
    pods = seal(PODS, LabelledPods(FIRST.uid, 3, 1, (web,)), node_key(OTHER)).sealed
    absent = seal(ABSENCE, Absence(FIRST.uid, 1, (address,)), node_key(OTHER)).sealed

    async def scenario() -> None:
        loop = Loop()
        policies = ClusterPolicies(loop, tmp_path / "own.json", [], lambda _: "", member)
        member.replica.subscribe(policies.hear)
        gone = GonePods(member, endpoints=list, attached=list, changed=lambda: None)
        member.replica.subscribe(gone.hear)

        def believed() -> tuple[list[str], frozenset[str]]:
            pod = policies._world({}).pods[Key("shop", "web-0")]
            return list(map(str, pod.addresses)), gone.addresses

        member.offer([pods, absent], source=Source.NEIGHBOUR)
        assert believed() == ([address], frozenset({address}))
        member.offer([taken_over()], source=Source.CLOUD)
        assert believed() == ([], frozenset())
        policies.close()
        gone.close()
        loop.close()

    with make_netns("policies").entered():
        asyncio.run(scenario())


@contextmanager
def node_of(bed: NodeBed, folder: Path, told: list[PodsChanged]) -> Iterator[tuple[Loop, Node]]:
    """The bed's node with an agent's parts, which are within a running loop."""
    loop, announcer, reaper = Loop(), Announcer(), Reaper()
    attachments = Attachments(folder / "attachments")
    ledgers = Ledgers(folder / "networks", 30.0, attachments)
    pods = PodKeeper(
        attachments,
        announcer,
        is_held=lambda _ifname: False,
        release=lambda _attachment: None,
        retired=reaper.put,
    )
    ports = PortPart(loop, "auto", attachments, set)
    part = NodePart(
        loop,
        PodSettings(),
        kernel=bed.kernel,
        pods=pods,
        guards=PodGuards(ports),
        originals=OriginalSysctls(folder / SYSCTLS_FILE),
    )
    loop.add(part)
    yield (
        loop,
        Node(
            kernel=bed.kernel,
            ledgers=ledgers,
            attachments=attachments,
            reaper=reaper,
            announcer=announcer,
            node_part=part,
            tell=told.append,
        ),
    )
    ledgers.close()
    announcer.close()
    reaper.close()
    ports.close()
    loop.close()


def test_a_node_has_the_ports_of_a_relay_from_the_grant_on_that_makes_it_one(
    member: Membership, bed: NodeBed, tmp_path: Path
) -> None:
    async def scenario() -> None:
        with node_of(bed, tmp_path, []) as (_, node):
            member.subscribe(NodeInCluster(member, Settings(), node.node_part, ()).hear)
            now = grant(1)
            for generation, roles in ((2, frozenset({Role.RELAY})), (3, frozenset())):
                told = replace(now, generation=generation, revision=generation, roles=roles)
                member.offer([seal_grant(told, CLUSTER_KEY)], source=Source.CLOUD)
                assert member.grant is not None
                assert member.grant.roles == roles
                assert (("TCP", 443, 443) in node.state.own_ports) is bool(roles)

    with bed.node.entered():
        asyncio.run(scenario())


@pytest.mark.parametrize("by_hand", [True, False])
def test_what_is_given_up_without_a_del_is_told_too(
    bed: NodeBed, tmp_path: Path, *, by_hand: bool
) -> None:
    """The controller's list of pods would have it until another pod comes or goes."""
    told: list[PodsChanged] = []
    holder, everything = Holder("box", "eth0"), ip_network("10.0.0.0/29")
    range_ = Range(everything, everything[1], everything[-2], everything[1])

    async def scenario() -> None:
        with node_of(bed, tmp_path, told) as (loop, node):
            ledger = node.ledgers.ledger("net")
            ledger.reserve(holder, PodKey("default", "web", "eth0"), [(range_,)], now_s=0)
            repair = Repair(node)
            if by_hand:
                ledger.release(holder, now_s=0)
                slot = PolicySlot(loop, node.node_part, Settings(), node.attachments, None)
                admin = Admin(node, repair, None, slot, NodeHappenings(tmp_path))
                asked = {"network": "net", "pod_namespace": "default", "pod": "web"}
                await admin.answer("ipam.release", asked)
                assert ledger.bindings() == {}
            else:
                await repair()
                assert ledger.holders() == {}

    with bed.node.entered():
        asyncio.run(scenario())
    assert told
