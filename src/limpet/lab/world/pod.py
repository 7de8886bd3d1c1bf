"""A pod of the lab: a network namespace that stands for its sandbox."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any, Protocol

from limpet.lab.command import LabError, run_command
from limpet.lab.netns import answered_pings, delete_namespace, make_namespace


def pings(netns: str, address: object, *, within_s: int = 3) -> bool:
    """A ping from a namespace is answered. Raises: LabError."""
    return bool(answered_pings(netns, [str(address)], within_s))


@dataclass(frozen=True)
class CniAnswer:
    """What the CNI binary said."""

    exit_code: int
    document: dict[str, Any]
    """Result or error; empty when it printed nothing."""

    @property
    def addresses(self) -> list[IPv4Interface | IPv6Interface]:
        return [ip_interface(ip["address"]) for ip in self.document.get("ips", [])]


def decode_cni(done: subprocess.CompletedProcess[bytes]) -> CniAnswer:
    """Raises: LabError when stdout is neither empty nor JSON."""
    if not done.stdout.strip():
        return CniAnswer(done.returncode, {})
    try:
        return CniAnswer(done.returncode, json.loads(done.stdout))
    except ValueError as error:
        raise LabError(f"the CNI binary printed {done.stdout[:200]!r}") from error


class PodHost(Protocol):
    """What runs pods: a node."""

    name: str

    @property
    def cni(self) -> Callable[..., CniAnswer]:
        """Runs the CNI binary: verb, pod, options."""


class LabPod:
    """A network namespace that stands for a pod's sandbox."""

    def __init__(
        self, node: PodHost, name: str, container_id: str, namespace: str, *, create: bool = True
    ) -> None:
        """`create` false: it is there already. Raises: LabError."""
        self.node = node
        self.name = name
        self.namespace = namespace
        self.container_id = container_id
        self.netns = f"{node.name}-{container_id}"
        self.addresses: list[IPv4Interface | IPv6Interface] = []
        if create:
            make_namespace(self.netns)

    @property
    def netns_path(self) -> str:
        return f"/run/netns/{self.netns}"

    def add(self, **options: Any) -> CniAnswer:
        """ADD through the CNI binary. Raises: LabError when it fails."""
        answer = self.node.cni("ADD", self, **options)
        if answer.exit_code:
            raise LabError(f"attach pod {self.name}: {answer.document}")
        self.addresses = answer.addresses
        return answer

    def delete(self, **options: Any) -> CniAnswer:
        """DEL. Raises: LabError when it fails."""
        answer = self.node.cni("DEL", self, **options)
        if answer.exit_code:
            raise LabError(f"detach pod {self.name}: {answer.document}")
        return answer

    def run(self, *command: str) -> str:
        """Raises: LabError."""
        return run_command(*command, netns=self.netns)

    def reaches(self, address: object, *, within_s: int = 3) -> bool:
        """One ping is answered."""
        return pings(self.netns, address, within_s=within_s)

    def remove(self) -> None:
        """Deletes the namespace, as a runtime does after DEL."""
        delete_namespace(self.netns)
