"""What a node says of pods that are another's: that they are gone, or what labels they have."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from pathlib import Path

from limpet.agent.policies.told_pods import pods_of_all
from limpet.agent.serving.gone_pods import GonePods
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.identity import Identity
from limpet.cluster.kinds import ABSENCE
from limpet.cluster.kinds.absence import Absence
from limpet.cluster.replica import Outcome
from limpet.cluster.seal import seal
from limpet.policies.policy import Key, PolicyPod
from tests.beds.member import membership_of
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    seal_grant,
    seal_network,
)

VICTIM, CLAIMANT = 2, 3


def _absent(number: int, signer: int, *addresses: str) -> Sealed:
    absence = Absence(grant(number).uid, 1, addresses)
    return seal(ABSENCE, absence, node_key(signer)).sealed


def test_a_pod_of_another_node_is_not_gone_because_one_says_so(tmp_path: Path) -> None:
    """Its endpoints stay in rotation: only a node itself says which of its pods are gone."""

    async def scenario() -> None:
        grants = [seal_grant(grant(number), CLUSTER_KEY) for number in (1, VICTIM, CLAIMANT)]
        identity = Identity(tmp_path, node_key(1), "node-1", PINNED, ())
        watcher = membership_of(identity, seal_network(network(), CLUSTER_KEY), *grants)
        gone = GonePods(watcher, endpoints=list, attached=list, changed=lambda: None)
        gone.begin()
        watcher.replica.subscribe(gone.hear)

        claims = [
            _absent(CLAIMANT, CLAIMANT, "10.244.2.7", "10.244.3.7"),
            _absent(VICTIM, CLAIMANT, "10.244.2.7"),
        ]
        outcomes = watcher.offer(claims, source=Source.NEIGHBOUR)

        assert outcomes == [Outcome.FRESH, Outcome.BAD]
        assert gone.addresses == {"10.244.3.7"}  # of its own, it may
        gone.close()
        watcher.close()

    asyncio.run(scenario())


def test_a_pod_that_two_nodes_tell_of_is_each_nodes_own() -> None:
    """Or the one who names another's pod would take it, and what policies allow it, away."""
    key = Key("shop", "web-0")
    web = {"app": "web"}
    victims = PolicyPod(key, (ip_address("10.244.2.7"),), web)
    claimed = PolicyPod(key, (ip_address("10.244.3.7"),), {"app": "admin"})
    for uids in (("a", "b"), ("b", "a")):
        told = {f"{uids[0]}/4": {key: victims}, f"{uids[1]}/4": {key: claimed}}
        merged = pods_of_all(told)
        assert {(pod.addresses, tuple((pod.labels or {}).items())) for pod in merged.values()} == {
            (victims.addresses, (("app", "web"),)),
            (claimed.addresses, (("app", "admin"),)),
        }
        assert all(name == pod.key for name, pod in merged.items())
