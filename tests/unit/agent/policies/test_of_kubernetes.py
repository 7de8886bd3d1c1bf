"""What is kept of a Kubernetes' policies."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from limpet.agent.policies.of_kubernetes import heard_before
from limpet.base.bounds.words import FILE
from limpet.base.errors import LimpetError
from limpet.policies.compiled import DirectionRules
from limpet.policies.compiler import compile_sides
from limpet.policies.heard import ReadPolicies, encode_kept
from limpet.policies.policy import Key, PolicyPod


def test_an_agent_begins_with_what_it_kept_of_however_many_pods(tmp_path: Path) -> None:
    """Of 60,000; an agent that refused it could not start again on any node."""
    kept = tmp_path / "policies-of-kubernetes.jsonl"
    heard = ReadPolicies()
    heard.is_whole = True
    for number in range(17_000):
        key = Key("shop", f"web-{number}")
        heard.pods[key] = PolicyPod(key, (ip_address("10.1.0.1"),), {"app": "x" * 1000})
    kept.write_bytes(encode_kept(heard.kept()))

    assert kept.stat().st_size > FILE.most
    assert len(heard_before(kept).pods) == len(heard.pods)


def test_who_is_to_delete_what_was_damaged_is_told_that_pods_are_closed_until_all_is_heard(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "policies-of-kubernetes.jsonl"
    kept.write_bytes(b"damaged\n")
    with pytest.raises(LimpetError, match=r"delete it .* until then this node's pods are closed"):
        heard_before(kept)
    kept.unlink()

    pod = PolicyPod(Key("shop", "web-0"), (ip_address("10.1.0.1"),), None)
    compiled = compile_sides(heard_before(kept).world({pod.key: pod}), [pod])

    nothing = DirectionRules()
    assert compiled.sides == {(pod.key, "ingress"): nothing, (pod.key, "egress"): nothing}
