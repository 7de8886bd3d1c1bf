"""Policies of all nodes, as a person applies and withdraws them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.controller.machines import Controller
from tests.controller.test_communities import document, refused, run

POLICY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {}}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {tier: front}}
"""


def revisions(controller: Controller) -> dict[str, int]:
    listed = document(controller, "policy", "list", "--cluster")["policies"]
    return {each["name"]: each["revision"] for each in listed}


def test_they_are_signed_once_withdrawn_and_may_come_back(
    controller: Controller, tmp_path: Path
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(POLICY)
    said = run(controller, "policy", "apply", str(file), "--cluster").splitlines()
    assert said == [
        "NetworkPolicy/shop/web: signed, for all nodes",
        "Namespace/shop: signed, for all nodes",
    ]
    first = revisions(controller)
    assert set(first) == {"NetworkPolicy/shop/web", "Namespace/shop"}
    assert "as it was" in run(controller, "policy", "apply", str(file), "--cluster")
    assert revisions(controller) == first

    assert "withdrawn" in run(controller, "policy", "delete", "shop/web", "--cluster")
    assert set(revisions(controller)) == {"Namespace/shop"}
    assert "has none" in refused(controller, "policy", "delete", "shop/web", "--cluster")
    run(controller, "policy", "apply", str(file), "--cluster")
    assert revisions(controller)["NetworkPolicy/shop/web"] > first["NetworkPolicy/shop/web"]


def test_of_a_file_with_something_wrong_nothing_is_signed(
    controller: Controller, tmp_path: Path
) -> None:
    blocks = [{"ipBlock": {"cidr": f"10.{n >> 8}.{n & 255}.0/24"}} for n in range(1_500)]
    large = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "large", "namespace": "shop"},
        "spec": {"podSelector": {}, "egress": [{"to": blocks}]},
    }
    nonsense = {**large, "spec": {"podSelectors": {}}}
    for wrong, words in ((large, "split it"), (nonsense, "document 3")):
        file = tmp_path / "wrong.yaml"
        file.write_text(f"{POLICY}---\n{json.dumps(wrong)}\n")
        assert words in refused(controller, "policy", "apply", str(file), "--cluster")
    assert revisions(controller) == {}
