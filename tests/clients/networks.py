"""The plugins under test: Limpet, and the reference plugins to judge the bed itself by."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limpet.agent.client import call
from limpet.cni.conflist import conflist_text
from limpet.cni.shim_binary import shim_path
from tests.clients.machine import Machine, Process
from tests.waiting import wait_until

SEGMENT_V4 = ipaddress.ip_network("10.244.7.0/24")
SEGMENT_V6 = ipaddress.ip_network("fd00:7::/64")
BIN_DIR = "/opt/cni/bin"
CONF_DIR = "/etc/cni/net.d"
REFERENCE_DIR = "/usr/lib/cni"
"""Where Debian puts the reference plugins."""


def make_conflist(name: str, plugins: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"cniVersion": "1.0.0", "name": name, "plugins": list(plugins)}


class Network(ABC):
    """A pod network of a machine, ready to be used by a runtime."""

    name: str
    environment: Mapping[str, str] = {}
    """What a runtime must pass on to the plugin."""
    data_dir = "/var/lib/cni/networks"
    """Folder, in the machine, with one folder of reservations per network."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def install(self) -> None:
        """Put the plugins where runtimes look for them, and the reference ones beside."""
        self.machine.run("mkdir", "-p", BIN_DIR, CONF_DIR)
        self.machine.run("sh", "-c", f"ln -sf {REFERENCE_DIR}/* {BIN_DIR}/")

    @abstractmethod
    def start(self) -> None:
        """Start what the plugins need running; returns when it serves."""

    @abstractmethod
    def main(self) -> dict[str, Any]:
        """The plugin that makes the interface, as a node's installation configures it."""

    @abstractmethod
    def ipam(self) -> dict[str, Any]:
        """The `ipam` object with which other main plugins get addresses of the segments."""

    @abstractmethod
    def conflist(self) -> dict[str, Any]:
        """What serves a node's pods, hostPorts included."""

    def write_conflist(self, conflist: Mapping[str, Any] | None = None) -> Path:
        """Write a conflist as an installer must, renamed into place; the node's own for None."""
        conflist = conflist or self.conflist()
        path = self.machine.path(f"{CONF_DIR}/10-{conflist['name']}.conflist")
        made = path.with_suffix(".new")
        made.write_text(json.dumps(conflist, indent=2))
        made.rename(path)
        return path

    def files(self, name: str | None = None) -> dict[str, str]:
        """Container id per address that is held now, read from the files of host-local's layout."""
        folder = self.machine.path(f"{self.data_dir}/{name or self.name}")
        held = {}
        for file in folder.iterdir() if folder.exists() else ():
            try:
                address = ipaddress.ip_address(file.name)
                held[str(address)] = file.read_text().splitlines()[0].strip()
            except (ValueError, FileNotFoundError, IndexError):
                continue  # not a reservation, or released meanwhile
        return held

    def reservations(self, name: str | None = None) -> dict[str, str]:
        """Container id per address that is held now, as the plugin itself knows it."""
        return self.files(name)


class ReferenceNetwork(Network):
    """bridge, host-local, portmap and bandwidth of containernetworking-plugins."""

    name = "reference"

    def start(self) -> None:
        """Nothing: these plugins do their work themselves."""

    def main(self) -> dict[str, Any]:
        return {
            "type": "bridge",
            "bridge": "reference0",
            "isDefaultGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": self.ipam(),
        }

    def ipam(self) -> dict[str, Any]:
        ranges = [[{"subnet": str(segment)}] for segment in (SEGMENT_V4, SEGMENT_V6)]
        return {"type": "host-local", "dataDir": self.data_dir, "ranges": ranges}

    def conflist(self) -> dict[str, Any]:
        plugins = [
            self.main(),
            {"type": "portmap", "capabilities": {"portMappings": True}},
            {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        ]
        return make_conflist(self.name, plugins)


class LimpetNetwork(Network):
    """Limpet, with the agent of this checkout."""

    name = "limpet"
    socket = "/run/limpet/agent.sock"
    environment = {"LIMPET_SOCKET": socket}  # noqa: RUF012

    agent: Process | None = None

    def install(self) -> None:
        super().install()
        shutil.copy(shim_path(), self.machine.path(f"{BIN_DIR}/limpet"))
        self.machine.write(
            "/etc/limpet/agent.toml",
            f'segments = ["{SEGMENT_V4}", "{SEGMENT_V6}"]\n'
            f'data_dir = "{self.data_dir}"\n'
            'state_dir = "/var/lib/limpet"\n'
            'run_dir = "/run/limpet"\n'
            f'socket = "{self.socket}"\n',
        )

    def start(self) -> None:
        """Start the agent; returns when its socket accepts a connection."""
        self.agent = self.machine.start(
            sys.executable, "-m", "limpet", "agent", "--config", "/etc/limpet/agent.toml"
        )
        wait_until(self._agent_answers, "the agent accepts a connection")

    def _agent_answers(self) -> bool:
        assert self.agent is not None
        assert self.agent.running, f"the agent has ended: {self.agent.log.read_text()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self.machine.path(self.socket)))
            except (FileNotFoundError, ConnectionRefusedError):
                return False
        return True

    def reservations(self, name: str | None = None) -> dict[str, str]:
        """As the running agent answers; its files follow its journal a little later."""
        listed = call(self.machine.path(self.socket), "ipam.list", network=name or self.name)
        return {
            record["address"]: record["container_id"]
            for record in listed["records"]
            if record["state"] == "live"
        }

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()

    def main(self) -> dict[str, Any]:
        return {
            "type": "limpet",
            "isDefaultGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
        }

    def ipam(self) -> dict[str, Any]:
        return {"type": "limpet"}

    def conflist(self) -> dict[str, Any]:
        """As `limpet install` writes it."""
        document: dict[str, Any] = json.loads(conflist_text(self.name))
        return document


def network_under_test(machine: Machine) -> Network:
    """The network that LIMPET_CLIENTS_NETWORK names; Limpet when it is not set."""
    wanted = os.environ.get("LIMPET_CLIENTS_NETWORK", LimpetNetwork.name)
    return {cls.name: cls for cls in (LimpetNetwork, ReferenceNetwork)}[wanted](machine)
