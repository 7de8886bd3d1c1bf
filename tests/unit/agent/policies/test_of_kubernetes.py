"""What is kept of a Kubernetes' policies."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from limpet.agent.policies.of_kubernetes import heard_before
from limpet.base.bounds.words import FILE
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
    assert len(heard_before(kept)[0].pods) == len(heard.pods)


@pytest.mark.parametrize("text", [b"damaged\n", bytes(4096), b""], ids=["words", "zeros", "none"])
def test_what_was_damaged_is_put_aside_and_pods_are_closed_until_all_is_heard(
    tmp_path: Path, text: bytes
) -> None:
    kept = tmp_path / "policies-of-kubernetes.jsonl"
    kept.write_bytes(text)

    heard, damage = heard_before(kept)

    assert f"{kept} was damaged" in damage
    assert "kept as policies-of-kubernetes.jsonl.damaged" in damage
    assert kept.with_name(f"{kept.name}.damaged").read_bytes() == text
    assert heard_before(kept)[1] == ""
    pod = PolicyPod(Key("shop", "web-0"), (ip_address("10.1.0.1"),), None)
    compiled = compile_sides(heard.world({pod.key: pod}), [pod])

    nothing = DirectionRules()
    assert compiled.sides == {(pod.key, "ingress"): nothing, (pod.key, "egress"): nothing}


def test_what_the_disk_has_lost_is_damaged_too(tmp_path: Path) -> None:
    kept = tmp_path / "policies-of-kubernetes.jsonl"
    kept.symlink_to("/proc/self/mem")  # whose first page nobody can read: EIO

    heard, damage = heard_before(kept)

    assert not heard.is_whole
    assert "Input/output error" in damage
    assert not kept.is_symlink()
