"""The objects that a test makes at the API server. Pure."""

from __future__ import annotations

from typing import Any

from limpet.cli.connectivity.tasks import Task, encode_task

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
