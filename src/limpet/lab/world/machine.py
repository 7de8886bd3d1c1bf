"""A node of a world: on its site's LAN, with a disk of its own, in the cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_interface, ip_network
from pathlib import Path
from typing import Any

from limpet.base.errors import LimpetError
from limpet.lab.clock import clock_environment
from limpet.lab.command import LabError, run_command
from limpet.lab.netns import delete_namespace
from limpet.lab.world.node import LAB_MARK, LabNode
from limpet.lab.world.pod import LabPod
from limpet.lab.world.site import Interface, LabSite, SiteNode, host
from limpet.lab.world.tunnels import end_tunnel, tunnel_ifname
from limpet.lab.world.wires import Wires, batch, configure, create_namespace

UPLINK = "eth0"
_FILLER = "filler"
_PROGRAMS = ("tunnel_program", "ipsec_program")
"""Settings that are found out when a world is built."""
_CHUNK = bytes(1 << 16)


class Machine(LabNode):
    """What is kept over commands is in `memory`; everything else is read from the kernel."""

    def __init__(
        self, wires: Wires, site: LabSite, node: SiteNode, folder: Path, settings: Mapping[str, Any]
    ) -> None:
        """Describes it; `create` makes it."""
        self.wires = wires
        self.site = site
        self.node = node
        self.disk = folder / "disk"
        super().__init__(
            wires.namespace(node.name),
            folder,
            create=False,
            **{
                "data_dir": str(self.disk / "networks"),
                "state_dir": str(self.disk / "state"),
                "tunnel_ifname": tunnel_ifname(wires.namespace(node.name)),
                **settings,
            },
        )
        self.data_dir = self.disk / "networks"
        self.addresses: tuple[Interface, ...] = node.addresses
        self.clock: str | None = None
        """Where the agent's wall clock starts, each time; None: it is right."""
        self.moves = 0
        """How often its addresses have changed."""
        self.wanted_pods: list[str] = []
        """They come back after a reboot."""

    @property
    def label(self) -> str:
        """Its name in the topology and in the cluster."""
        return self.node.name

    def memory(self) -> dict[str, Any]:
        return {
            "addresses": [str(each) for each in self.addresses],
            "moves": self.moves,
            "clock": self.clock,
            "wanted_pods": self.wanted_pods,
            "programs": {key: self.settings[key] for key in _PROGRAMS if key in self.settings},
            "pods": [
                {
                    "name": pod.name,
                    "namespace": pod.namespace,
                    "container_id": pod.container_id,
                    "addresses": [str(each) for each in pod.addresses],
                }
                for pod in self.pods.values()
            ],
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """What `memory` was, in an earlier command."""
        self.addresses = tuple(map(ip_interface, memory["addresses"]))
        self.moves = memory["moves"]
        self.wanted_pods = list(memory["wanted_pods"])
        self.set_clock(memory["clock"])
        self.settings |= memory["programs"]
        for each in memory["pods"]:
            pod = LabPod(self, each["name"], each["container_id"], each["namespace"], create=False)
            pod.addresses = [ip_interface(text) for text in each["addresses"]]
            self.pods[pod.container_id] = pod

    # Its life

    def mount_disk(self, size_mib: int) -> None:
        """A disk of its own that can be filled; 0: a folder on the machine's. Raises: LabError."""
        self.disk.mkdir(parents=True, exist_ok=True)
        if size_mib and not os.path.ismount(self.disk):
            run_command(
                *("mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0755"),
                *("limpet-lab", str(self.disk)),
            )
        (self.disk / "state").mkdir(exist_ok=True)
        mark = self.disk / "state" / LAB_MARK
        mark.write_text(f"{self.agent.log}\n", encoding="utf-8")

    def create(self) -> None:
        """Its namespace, with an uplink in its site's LAN. Raises: LabError."""
        create_namespace(self.name)
        self.wires.plug(self.site, self.label, self.name, UPLINK, self.node.mac)
        self._configure_uplink()

    def _configure_uplink(self) -> None:
        routers = [each.ip for each in self.site.router_addresses]
        configure(self.name, UPLINK, self.addresses, via=routers)

    def join(self, token: str, endpoints: Sequence[str], *options: str) -> str:
        """`limpet join` on this node; what it says. Raises: LabError."""
        self.write_config()
        controllers = [word for each in endpoints for word in ("--controller", each)]
        return run_command(
            *(sys.executable, "-m", "limpet", "join", "--token-file", "-", *controllers),
            *("--name", self.label, "--config", str(self.config_path), *options),
            netns=self.name,
            stdin=token,
        )

    def power_off(self) -> None:
        """Only what is on its disk is left. Raises: LabError."""
        self.stop_agent(signal.SIGKILL)
        end_tunnel(self.name)
        self.remove_pods()
        self.wires.unplug(self.site, self.label)
        delete_namespace(self.name)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def power_on(self) -> None:
        """The agent starts, then the pods that were there, as new containers. Raises: LabError."""
        self.create()
        self.start_agent()
        for name in self.wanted_pods:
            self.attach(name)

    # Pods

    def start_pod(self, name: str) -> LabPod:
        """A pod that stays over reboots. Raises: LabError."""
        if name in self.wanted_pods:
            raise LabError(f"start pod {name}: it is on {self.label} already")
        pod = self.attach(name)
        self.wanted_pods.append(name)
        return pod

    def attach(self, name: str) -> LabPod:
        """A new container of a pod, attached through the CNI binary. Raises: LabError."""
        pod = self.pod(name, container_id=f"{name}-{secrets.token_hex(3)}")
        try:
            pod.add()
        except LimpetError:
            self._forget(pod)
            raise
        return pod

    def stop_pod(self, name: str) -> None:
        """As a runtime does: DEL, then the sandbox goes. Raises: LabError."""
        pod = self.find_pod(name)
        pod.delete()
        self._forget(pod)
        self.wanted_pods.remove(name)

    def find_pod(self, name: str) -> LabPod:
        """Raises: LabError."""
        for pod in self.pods.values():
            if pod.name == name:
                return pod
        raise LabError(f"find pod {name}: it is not on {self.label}")

    def _forget(self, pod: LabPod) -> None:
        pod.remove()
        del self.pods[pod.container_id]

    # Faults

    def change_addresses(self, to: Sequence[Interface] | None = None) -> None:
        """The LAN gives it others, as a DHCP server would: `to`, or some that no node has had.

        Raises: LabError.
        """
        fresh = self._other_addresses() if to is None else tuple(to)
        self.moves += 1
        batch(self.name, [f"addr del {each} dev {UPLINK}" for each in self.addresses])
        self.addresses = fresh
        self._configure_uplink()

    def _other_addresses(self) -> tuple[Interface, ...]:
        # As many nodes as there are apart: no two nodes meet, however often each has moved.
        number = self.node.number + (self.moves + 1) * len(self.site.nodes)
        for prefix in self.site.lan:
            if number >= prefix.num_addresses - 1:
                raise LabError(f"change the addresses of {self.label}: {prefix} has no more")
        return tuple(host(prefix, number) for prefix in self.site.lan)

    def set_clock(self, start: str | None) -> None:
        """The wall clock of the agent when it starts the next time. Raises: LabError."""
        if start is not None:
            clock_environment(start, self.folder)  # what it needs is missing now, or never
        self.clock = start

    def start_agent(self) -> None:
        """Returns when the agent says that it is ready. Raises: LabError with its log."""
        clock = self.clock
        self.agent_environment = {} if clock is None else clock_environment(clock, self.folder)
        super().start_agent()

    def fill_disk(self) -> None:
        """Not one block is left. Raises: LabError when it has no disk of its own."""
        if not os.path.ismount(self.disk):
            raise LabError(
                f"fill the disk of {self.label}: it has none of its own (set disk_mib in the "
                "topology)"
            )
        with (
            open(self.disk / _FILLER, "ab", buffering=0) as file,
            contextlib.suppress(OSError),
        ):
            while True:
                file.write(_CHUNK)

    def empty_disk(self) -> None:
        """What `fill_disk` put there goes."""
        (self.disk / _FILLER).unlink(missing_ok=True)

    @property
    def disk_is_full(self) -> bool:
        return (self.disk / _FILLER).exists()

    # What it says

    def overlay_addresses(self) -> list[IPv4Address | IPv6Address]:
        """Its own addresses in the pods' network. Raises: AgentUnavailable."""
        prefixes = [ip_network(each["prefix"]) for each in self.ask("status")["segments"]]
        first = {prefix.version: prefix[1] for prefix in reversed(prefixes)}
        return [first[version] for version in sorted(first)]
