"""Whether an API server serves what a definition was applied for."""

from __future__ import annotations

import contextlib
import json
from functools import partial

from limpet.lab.command import LabError
from limpet.lab.kube.control_plane import ControlPlane
from tests.waiting import wait_until

OURS = tuple(
    f"{plural}.limpet.dev"
    for plural in ("clusternetworks", "nodegrants", "nodepresences", "communities")
)


def wait_until_served(plane: ControlPlane, *names: str) -> None:
    """Returns when all of `names`, such as `nodegrants.limpet.dev`, are Established and listed.

    `kubectl wait --for=condition=Established` ends at once with an error where the definition has
    no conditions yet. Source: kubernetes/kubernetes#66439.
    """
    for name in names:
        wait_until(partial(_is_served, plane, name))


def _is_served(plane: ControlPlane, name: str) -> bool:
    """A kind is listed a moment after it is Established."""
    with contextlib.suppress(LabError):
        return _is_established(plane, name) and plane.kubectl("get", name, "-o", "name") is not None
    return False


def _is_established(plane: ControlPlane, name: str) -> bool:
    found = json.loads(plane.kubectl("get", "crd", name, "-o", "json"))
    conditions = found.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
