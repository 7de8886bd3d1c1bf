"""Network policies between pods of two nodes, whatever carries their packets."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from limpet.lab.command import LabError
from limpet.lab.world.machine import Machine
from tests.lab.bed import echo, echoing, is_refused
from tests.lab.rungs import the_pod


def policies_hold(source: Machine, target: Machine) -> None:
    """Each end closes, and opens again for just who it names. Raises: AssertionError, LabError."""
    pod, peer = the_pod(source), the_pod(target)
    asks = [partial(echo, pod.netns, "tcp", each.ip, 64) for each in peer.addresses]
    named = [{"ipBlock": {"cidr": f"{each.ip}/{each.max_prefixlen}"}} for each in pod.addresses]
    others = [{"ipBlock": {"cidr": f"{each.ip}/{each.max_prefixlen}"}} for each in peer.addresses]
    try:
        with echoing(peer.netns):
            assert [ask() for ask in asks] == ["same"] * len(asks)
            for machine, kind, rules in (
                (target, "Ingress", [{"from": named, "ports": [{"port": 7}]}]),
                (source, "Egress", [{"to": others, "ports": [{"port": 7}]}]),
            ):
                machine.ask("policy.apply", documents=[_policy(machine, kind, [])])
                for ask in asks:
                    is_refused(ask)
                machine.ask("policy.apply", documents=[_policy(machine, kind, rules)])
                assert [ask() for ask in asks] == ["same"] * len(asks)
    finally:
        for machine in (source, target):
            with contextlib.suppress(LabError):
                machine.ask("policy.delete", namespace=the_pod(machine).namespace, name="held")


def nodes_are_let_in_by_their_address(source: Machine, target: Machine) -> None:
    """What processes of a node send, those of pods with its network too: pods of the node itself
    get it always, others where a policy has the node's address in the pods' network. Raises:
    AssertionError, LabError."""
    peer, own = the_pod(target), source.overlay_addresses()
    blocks = [{"ipBlock": {"cidr": f"{each}/{each.max_prefixlen}"}} for each in own]
    asks = [partial(echo, source.name, "tcp", each.ip, 64) for each in peer.addresses]
    probes = [partial(echo, target.name, "tcp", each.ip, 64) for each in peer.addresses]
    try:
        with echoing(peer.netns):
            target.ask("policy.apply", documents=[_policy(target, "Ingress", [])])
            for ask in asks:
                is_refused(ask)
            assert [probe() for probe in probes] == ["same"] * len(probes)
            target.ask("policy.apply", documents=[_policy(target, "Ingress", [{"from": blocks}])])
            assert [ask() for ask in asks] == ["same"] * len(asks)
    finally:
        with contextlib.suppress(LabError):
            target.ask("policy.delete", namespace=peer.namespace, name="held")


def _policy(machine: Machine, kind: str, rules: list[Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "held", "namespace": the_pod(machine).namespace},
        "spec": {"podSelector": {}, "policyTypes": [kind], kind.lower(): rules},
    }
