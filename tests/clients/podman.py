"""podman with its CNI backend on a machine."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from subprocess import CompletedProcess
from typing import Any

import pytest

from limpet.lab.kube.image import IMAGE, write_image
from tests.clients.machine import Machine
from tests.clients.networks import BIN_DIR, CONF_DIR, Network
from tests.waiting import wait_until

_CONFIG = f"""
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "cni"
network_config_dir = "{CONF_DIR}"
cni_plugin_dirs = ["{BIN_DIR}"]
"""
_STORAGE = """
[storage]
driver = "vfs"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"""


def podman_on(machine: Machine, network: Network) -> Podman:
    """podman with its image, and `network` among its networks. Skips where podman knows no CNI."""
    version = machine.run("podman", "--version").split()[-1]
    if int(version.split(".")[0]) >= 5:
        pytest.skip(f"podman {version} has no CNI backend, podman 4 had the last")
    network.install()
    network.start()
    network.write_conflist()
    return Podman(machine, network)


class Podman:
    """Commands of podman, and what its containers say."""

    def __init__(self, machine: Machine, network: Network) -> None:
        self.machine = machine
        self.network = network
        self._env = {
            **network.environment,
            "CONTAINERS_CONF": "/etc/containers/lct.conf",
            "CONTAINERS_STORAGE_CONF": "/etc/containers/lct-storage.conf",
        }
        machine.write(self._env["CONTAINERS_CONF"], _CONFIG)
        machine.write(self._env["CONTAINERS_STORAGE_CONF"], _STORAGE)
        write_image(machine.path("/tmp/image.tar"), machine.path("/usr/bin/busybox"))
        self("load", "--quiet", "--input", "/tmp/image.tar")

    def typed(self, text: str, _marker: Mapping[str, str], pasted: str) -> CompletedProcess[str]:
        """A line of a page; IMAGE is ours, and its container is in the machine's cgroup."""
        folder = "/tmp/typed"
        limpet = f'exec {shlex.quote(sys.executable)} -m limpet "$@"'
        own = f"/usr/bin/podman run --cgroup-parent /{self.machine.name}"
        podman = f'[ "$1" = run ] || exec /usr/bin/podman "$@"; shift; exec {own} "$@"'
        for name, line in (("limpet", limpet), ("podman", podman)):
            self.machine.write(f"{folder}/{name}", f"#!/bin/sh\n{line}\n")
            self.machine.path(f"{folder}/{name}").chmod(0o755)
        environment = self._env | {"PATH": f"{folder}:/usr/sbin:/usr/bin"}
        words = ("sh", "-euc", text.replace("IMAGE", IMAGE))
        return self.machine.try_run(*words, env=environment, stdin=pasted)

    def __call__(self, *arguments: str) -> str:
        """What a command prints. Raises: AssertionError with what it said, unless it succeeds."""
        return self.machine.run("podman", *arguments, env=self._env).strip()

    def run(self, name: str, *options: str, network: str | None = None) -> None:
        """Start a container that answers HTTP with its name; on the network under test for None."""
        script = f"echo {name} > /www/index.html; exec httpd -f -p 80 -h /www"
        self(
            *("run", "--detach", "--name", name, "--cgroup-parent", f"/{self.machine.name}"),
            *("--network", network or self.network.name, "--entrypoint", "", *options),
            *(IMAGE, "/bin/sh", "-c", script),
        )
        wait_until(
            lambda: self("exec", name, "wget", "-q", "-O", "-", "http://127.0.0.1/") == name,
            f"the server of {name} answers itself",
        )

    def fetch(self, name: str, from_url: str) -> str:
        """What an HTTP server answers to a container."""
        return self("exec", name, "timeout", "5", "wget", "-q", "-O", "-", from_url)

    def remove(self, name: str) -> None:
        self("rm", "--force", "--time", "0", name)

    def endpoint(self, name: str, network: str | None = None) -> dict[str, Any]:
        """What podman keeps about a container on a network, from the result of ADD."""
        networks = json.loads(self("inspect", name))[0]["NetworkSettings"]["Networks"]
        endpoint: dict[str, Any] = networks[network or self.network.name]
        return endpoint

    def address(self, name: str, network: str | None = None) -> str:
        """IPv4 address."""
        return str(self.endpoint(name, network)["IPAddress"])

    def address_v6(self, name: str, network: str | None = None) -> str:
        return str(self.endpoint(name, network)["GlobalIPv6Address"])
