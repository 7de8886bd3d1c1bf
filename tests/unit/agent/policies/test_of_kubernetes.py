"""What is kept of a Kubernetes' policies."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from limpet.agent.policies.of_kubernetes import heard_before
from limpet.base.bounds.words import FILE
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
