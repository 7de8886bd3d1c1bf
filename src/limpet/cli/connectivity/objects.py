"""The objects that a test makes at the API server. Pure."""

from __future__ import annotations

from typing import Any

from limpet.cli.connectivity.tasks import ANSWER_PORT, OWN_PORT, TargetKind, Task, encode_task

NAMESPACE = "limpet-connectivity-test"
ROLE_LABEL = "limpet.dev/connectivity-test"
ANSWERER, PROBER = "answerer", "prober"
AGENT_FOLDER = "/run/limpet"
_LONGEST_S = 900
"""A pod that nobody has taken away ends itself."""


def namespace() -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/part-of": "limpet",
        # The agent's socket is a path of the node.
        "pod-security.kubernetes.io/enforce": "privileged",
    }
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": labels},
    }


ANSWERERS, OWN = "answerers", "own"
"""Names of the two Services."""


def services() -> list[dict[str, Any]]:
    """All pods that answer, also at a port of each node; and each pod that asks, to itself: a
    Service that stays on the node has no other endpoint there."""
    everybody = {
        "type": "NodePort",
        "ipFamilyPolicy": "PreferDualStack",
        "selector": {ROLE_LABEL: ANSWERER},
        "ports": [{"name": "answer", "port": ANSWER_PORT}],
    }
    itself = {
        "ipFamilyPolicy": "PreferDualStack",
        "selector": {ROLE_LABEL: PROBER},
        "internalTrafficPolicy": "Local",
        "ports": [{"name": "own", "port": OWN_PORT}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        }
        for name, spec in ((ANSWERERS, everybody), (OWN, itself))
    ]


def policy() -> dict[str, Any]:
    """Pods that ask reach those that answer at one of their two ports."""
    prober = {"podSelector": {"matchLabels": {ROLE_LABEL: PROBER}}}
    ports = [{"protocol": each, "port": ANSWER_PORT} for each in ("TCP", "UDP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": ANSWERERS, "namespace": NAMESPACE},
        "spec": {
            "podSelector": {"matchLabels": {ROLE_LABEL: ANSWERER}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [prober], "ports": ports}],
        },
    }


def answerer(number: int, node: str, image: str) -> dict[str, Any]:
    return _pod(ANSWERER, number, node, image, ["connectivity", "pod"], [], {})


def prober(number: int, node: str, image: str, task: Task) -> dict[str, Any]:
    """It asks the agent of its node by which way packets go."""
    pod = _pod(
        PROBER,
        number,
        node,
        image,
        ["connectivity", "pod", "--task", encode_task(task)],
        ["NET_RAW"],  # pings
        {
            "env": [{"name": "POD_IPS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIPs"}}}],
            "volumeMounts": [{"name": "agent", "mountPath": AGENT_FOLDER, "readOnly": True}],
        },
    )
    if any(each.kind is TargetKind.SERVICE for each in task.targets):
        pod["spec"]["dnsPolicy"] = "ClusterFirst"  # it asks for a Service by its name
    folder = {"path": AGENT_FOLDER, "type": "DirectoryOrCreate"}
    pod["spec"]["volumes"] = [{"name": "agent", "hostPath": folder}]
    return pod


def _pod(
    role: str,
    number: int,
    node: str,
    image: str,
    arguments: list[str],
    capabilities: list[str],
    more: dict[str, Any],
) -> dict[str, Any]:
    container = {
        "name": role,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": arguments,
        "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": capabilities},
        },
        **more,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            # A node's name may be longer than a pod's host name.
            "name": f"{role}-{number}",
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/part-of": "limpet", ROLE_LABEL: role},
        },
        "spec": {
            # On this node, whatever its taints and however full it is.
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LONGEST_S,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "dnsPolicy": "Default",
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }
