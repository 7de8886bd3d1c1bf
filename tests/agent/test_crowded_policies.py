"""More policies of the cluster than a node keeps of a namespace, and then fewer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from limpet.agent.policies.of_cluster import ClusterPolicies
from limpet.base.bounds.tenants import POLICY_PARTS_OF_ITSELF, POLICY_PARTS_OF_ONE
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.identity import Identity
from limpet.cluster.kinds import POLICY
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.cluster.seal import seal
from limpet.datapath.loop import Loop
from limpet.policies.policy import Key
from tests.beds.member import membership_of
from tests.beds.namespaces import NetnsFactory
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    seal_grant,
    seal_network,
)

PORTS = 1_500
"""Of one policy, which has a good 1,500 parts."""
MANY = POLICY_PARTS_OF_ONE.most // PORTS + 1
assert POLICY_PARTS_OF_ITSELF.most > PORTS


def signed(number: int, revision: int, *, is_there: bool = True) -> Sealed:
    ports = [{"port": 1 + each} for each in range(PORTS)]
    document: dict[str, Any] = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"p{number}", "namespace": "shop"},
        "spec": {"podSelector": {}, "ingress": [{"ports": ports}]},
    }
    said = SignedPolicy(f"NetworkPolicy/shop/p{number}", revision, document if is_there else None)
    return seal(POLICY, said, CLUSTER_KEY).sealed


def test_a_namespace_is_open_again_when_there_is_room_for_all_its_policies(
    make_netns: NetnsFactory, tmp_path: Path
) -> None:
    identity = Identity(tmp_path, node_key(1), "node-1", PINNED, ())
    own = seal_grant(grant(1), CLUSTER_KEY)
    member = membership_of(identity, seal_network(network(), CLUSTER_KEY), own)
    every = {Key("shop", f"p{number}") for number in range(MANY)}

    async def scenario() -> None:
        loop = Loop()
        policies = ClusterPolicies(loop, tmp_path / "own.json", [], lambda _: "", member)
        member.replica.subscribe(policies.hear)

        def known() -> set[Key]:
            return set(policies._world({}).policies)

        member.offer([signed(number, 1) for number in range(MANY)], source=Source.CLOUD)
        crowded = known()
        assert len(crowded) == MANY
        assert Key("shop", "*") in crowded
        (refused,) = every - crowded
        other = next(iter(every & crowded))
        member.offer([signed(int(other.name[1:]), 2, is_there=False)], source=Source.CLOUD)
        assert known() == every - {other}
        assert refused in known()
        assert policies.problems == []
        policies.close()
        loop.close()

    with make_netns("policies").entered():
        asyncio.run(scenario())
    member.close()
