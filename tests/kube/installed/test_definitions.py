"""Limpet's custom resources at a real API server: what it takes, refuses, shows and explains."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from limpet.cluster.kinds import GRANT, NETWORK, PRESENCE
from limpet.cluster.seal import seal
from limpet.kubernetes.kinds.resources import document_object
from limpet.lab.command import LabError
from limpet.lab.kube.control_plane import ControlPlane
from tests.kube.definitions import wait_until_served
from tests.unit.cluster_values import CLUSTER_KEY, grant, network, node_key, presence
from tests.waiting import wait_until

CRDS = Path(__file__).parents[3] / "deploy" / "crds"
PLURALS = ("clusternetworks", "nodegrants", "nodepresences", "communities")


@pytest.fixture(scope="module", name="plane")
def _plane(api: ControlPlane) -> ControlPlane:
    api.kubectl("apply", "-f", str(CRDS))
    names = (f"{plural}.limpet.dev" for plural in PLURALS)
    wait_until_served(api, *names)
    return api


def network_object(**spec: Any) -> dict[str, Any]:
    found = document_object(seal(NETWORK, network(), CLUSTER_KEY), "default")
    return {**found, "spec": {**found["spec"], **spec}}


def grant_object(**changes: Any) -> dict[str, Any]:
    value = grant(1, **changes)
    return document_object(seal(GRANT, value, CLUSTER_KEY), value.name)


def presence_object(sequence: int = 1) -> dict[str, Any]:
    value = presence(1, sequence)
    return document_object(seal(PRESENCE, value, node_key(1)), "node-1", "node-1")


def community_object(**spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "limpet.dev/v1alpha1", "kind": "Community"}
    return {**head, "metadata": {"name": "harbour"}, "spec": spec}


def apply(plane: ControlPlane, found: dict[str, Any]) -> str:
    said: str = plane.kubectl("apply", "-f", "-", stdin=json.dumps(found))
    return said


def edited(found: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {**found, "spec": {**found["spec"], **spec}}


def explained(plane: ControlPlane, plural: str) -> str:
    """Empty: an API server lists a kind a moment after it is Established."""
    try:
        return plane.kubectl("explain", plural, "--recursive=false")
    except LabError:
        return ""


def test_every_field_is_explained(plane: ControlPlane) -> None:
    for plural in PLURALS:
        said = wait_until(partial(explained, plane, plural), f"{plural} are listed")
        assert "limpet.dev" in said
        assert "<empty>" not in said
    assert "no other node" in plane.kubectl("explain", "nodegrant.spec.segments")


def test_what_the_controller_writes_is_taken_and_shown(plane: ControlPlane) -> None:
    for found in (
        network_object(),
        grant_object(),
        presence_object(),
        community_object(members=["node-1"], nodeSelector={"matchLabels": {"site": "harbour"}}),
    ):
        apply(plane, found)

    assert "10.244.0.0/16" in plane.kubectl("get", "cnet")
    assert "10.244.1.0/24" in plane.kubectl("get", "ng")
    assert "192.0.2.1" in plane.kubectl("get", "npr")
    assert "harbour" in plane.kubectl("get", "limpet")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (lambda: {**network_object(), "metadata": {"name": "other"}}, "its name is default"),
        (lambda: network_object(podCIDRs=["10.244.0.0"]), "is no prefix such as 10.244.0.0/16"),
        (lambda: network_object(podCIDRs=["10.244.1.0/16"]), "bits set behind its prefix length"),
        (lambda: network_object(podCIDRs=["127.0.0.0/8"]), "overlaps addresses that no pod may"),
        (
            lambda: network_object(podCIDRs=["10.1.0.0/16", "10.2.0.0/16"]),
            "more than one prefix of a family",
        ),
        (lambda: network_object(segmentLengthV4=12), "from that of the pod CIDR to 30"),
        (lambda: network_object(segmentLengthV6=40), "from that of the pod CIDR to 126"),
        (lambda: network_object(serviceCIDRs=["10.244.9.0/24"]), "overlaps a pod CIDR"),
        (lambda: network_object(segmentQuota=0), "segmentQuota"),
        (lambda: network_object(vxlanID=1 << 24), "vxlanID"),
        (lambda: network_object(cluster="-"), "spec.cluster"),
        (lambda: edited(grant_object(), segments=["10.244.1.1/24"]), "bits set behind"),
        (lambda: {**grant_object(), "metadata": {"name": "node-2"}}, "its name is the node's"),
        (lambda: edited(grant_object(), roles=["king"]), "roles"),
        (lambda: edited(presence_object(), addresses=["nowhere"]), "is no address"),
        (lambda: community_object(nodeSelector={}), "it asks for nothing"),
        (lambda: community_object(members=["-"]), "members"),
        (
            lambda: community_object(
                nodeSelector={
                    "matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]
                }
            ),
            "In takes one value",
        ),
        (lambda: community_object(tunnelBackend="magic"), "tunnelBackend"),
    ],
)
def test_what_the_controller_would_refuse_is_refused_in_words(
    plane: ControlPlane, found: Callable[[], dict[str, Any]], words: str
) -> None:
    plane.kubectl("delete", ",".join(PLURALS), "--all")

    with pytest.raises(LabError, match=words):
        apply(plane, found())


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (network_object, lambda: network_object(podCIDRs=["10.9.0.0/16"]), "chosen once"),
        (network_object, lambda: network_object(cluster="other"), "chosen once"),
        (network_object, lambda: network_object(segmentLengthV4=25), "chosen once"),
        (lambda: grant_object(generation=2), grant_object, "older grant would replace a newer"),
        (lambda: grant_object(tombstone=True), grant_object, "removed, which is for ever"),
        (lambda: presence_object(7), presence_object, "older presence would replace a newer"),
    ],
)
def test_what_may_not_change_does_not(
    plane: ControlPlane,
    before: Callable[[], dict[str, Any]],
    after: Callable[[], dict[str, Any]],
    words: str,
) -> None:
    plane.kubectl("delete", ",".join(PLURALS), "--all")
    apply(plane, before())

    with pytest.raises(LabError, match=words):
        apply(plane, after())
