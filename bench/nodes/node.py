"""A node under test: a namespace that is its host network, an uplink, pods, and a folder.

    pods ── bridge of the plugin ── [node] uplink ──── outside [namespace]

The outside knows a route to the node's uplink address only, so that a pod gets an answer from it
only when the node masquerades.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.nodes.links import Links
from bench.nodes.netns import Netns

OUTSIDE_ADDRESSES = ("198.51.100.1", "2001:db8:1::1")
_UPLINK_ADDRESSES = ("198.51.100.2", "2001:db8:1::2")
MTU_BYTES = 1500


@dataclass
class Pod:
    """A network namespace that pods come and go in."""

    netns: Netns
    sequence: int = 0
    container_id: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    """The answer to its last ADD; empty when it is not attached."""

    @property
    def name(self) -> str:
        return f"{self.netns.name}-{self.sequence}"

    def renew(self) -> None:
        """Become another pod: a new name and a new container id."""
        self.sequence += 1
        self.container_id = os.urandom(32).hex()

    def address(self, version: int) -> str:
        """Its address of this IP version, without the length."""
        addresses = [entry["address"].split("/")[0] for entry in self.result["ips"]]
        return next(str(address) for address in addresses if (":" in address) == (version == 6))


class Node:
    """Made whole or not at all; close() removes everything."""

    def __init__(self, name: str, disk_folder: Path) -> None:
        """`disk_folder` lies on a disk: a folder for the node's data is made in it."""
        self.pods: list[Pod] = []
        with ExitStack() as undo:
            self.netns = Netns(name)
            undo.callback(self.netns.close)
            self.outside = Netns(f"{name}-out")
            undo.callback(self.outside.close)
            self.folder = disk_folder / self.netns.name
            self.folder.mkdir(parents=True)
            undo.callback(shutil.rmtree, self.folder)
            # As on a real node: sockets and what a reboot forgets are on tmpfs.
            self.run_folder = Path("/run") / self.netns.name
            self.run_folder.mkdir()
            undo.callback(shutil.rmtree, self.run_folder)
            self._connect()
            with self.netns.inside():
                self.links = Links()
            undo.callback(self.links.close)
            self._own_links = set(self.links.present())
            undo.callback(self._close_pods)
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    def _connect(self) -> None:
        inside, outside = self.netns, self.outside
        with inside.inside():
            ip(
                f"link add uplink mtu {MTU_BYTES} type veth "
                f"peer name uplink mtu {MTU_BYTES} netns {outside.name}"
            )
        for netns, own, other in (
            (inside, _UPLINK_ADDRESSES, OUTSIDE_ADDRESSES),
            (outside, OUTSIDE_ADDRESSES, ()),
        ):
            with netns.inside():
                ip(f"address add {own[0]}/24 dev uplink")
                ip(f"address add {own[1]}/64 dev uplink nodad")
                ip("link set uplink up")
                for gateway in other:
                    ip(f"route add default via {gateway}")

    def new_pods(self, count: int) -> list[Pod]:
        """`count` more pod namespaces, made beforehand as runtimes do."""
        made = []
        for _ in range(count):
            pod = Pod(Netns(f"{self.netns.name.rsplit('-', 1)[1]}-p{len(self.pods)}"))
            self.pods.append(pod)
            made.append(pod)
        return made

    def pod_links(self) -> set[int]:
        """Indexes of what plugins made in the node's namespace, the bridge excepted."""
        present = self.links.present()
        bridges = {bridge["ifindex"] for bridge in ip_json(self.netns, "link show type bridge")}
        return set(present) - self._own_links - bridges

    def pod_links_of(self, pod: Pod) -> set[int]:
        """Index of the other end of the pod's interface, as the kernel names it."""
        (link,) = ip_json(pod.netns, "link show dev eth0")
        return {link["link_index"]}

    def _close_pods(self) -> None:
        for pod in self.pods:
            pod.netns.close()


def ip(arguments: str) -> None:
    """Runs `ip` in the caller's namespace; RuntimeError with its words when it fails."""
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {arguments}: {done.stderr.strip()}")


def ip_json(netns: Netns, arguments: str) -> list[dict[str, Any]]:
    """What `ip -j` shows in the namespace."""
    shown = output_of(netns, ["ip", "-d", "-j", *arguments.split()])
    found: list[dict[str, Any]] = json.loads(shown or "[]")
    # Some versions of ip show an empty object for what does not match.
    return [entry for entry in found if entry]


def output_of(netns: Netns, command: Sequence[str]) -> str:
    """What a command prints in the namespace; RuntimeError when it fails."""
    with netns.inside():
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
