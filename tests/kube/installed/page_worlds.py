"""Worlds in which commands of pages that need Kubernetes run, as a person types them there."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import yaml

from limpet.lab.command import run_command
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.kube.machine import KubeMachine
from limpet.lab.kube.programs import find_programs
from limpet.lab.kube.world import KubeWorld
from limpet.lab.launch import launcher
from limpet.linux.namespaces import Namespace
from tests.docs.pages import CHECKOUT, Block, blocks, pages
from tests.docs.worlds import CLOUD, Player, Said, going_on
from tests.kube.edge.edge_bed import PORT, Edge
from tests.kube.installed.test_manifests import MANIFEST
from tests.kube.services.service_day import manifest_with_services
from tests.kube.test_commands import as_pod

API_SERVER = "https://192.0.2.1:6443"
"""Of the pages."""
CONTEXTS = ("edge", "my-cluster")
"""As pages call the cluster."""
OUTSIDE = ("192.0.2.53", 53)
"""Where pages say that something outside of the cluster answers."""
ONCE = "limpet connectivity test"
"""Typed once for all pages that say so: it takes half a minute, and leaves nothing."""
_NODE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def blocks_of(world: str, value: str) -> dict[str, list[Block]]:
    """Those of the marker `WORLD=VALUE`, by page."""
    found = {
        page: [each for each in blocks(page) if each.marker.get(world) == value] for page in pages()
    }
    return {page: some for page, some in found.items() if some}


@dataclass(frozen=True)
class Administrator:
    """Somebody with `kubectl`, `helm`, `limpet`, a kubeconfig and a folder with `deploy`, whose
    machine has a wire to the API server, and loopback of its own."""

    plane: ControlPlane
    folder: Path

    def prepare(self, manifest: str) -> None:
        """`manifest`: deploy/limpet.yaml, as a person has edited it for this cluster."""
        (self.folder / "bin").mkdir(parents=True)
        script = self.folder / "bin" / "limpet"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m limpet "$@"\n')
        script.chmod(0o755)
        shutil.copytree(CHECKOUT / "deploy", self.folder / "deploy")
        (self.folder / "deploy" / "limpet.yaml").write_text(manifest)
        config = yaml.safe_load(Path(self.plane.environment()["KUBECONFIG"]).read_text())
        (own,) = config["contexts"]
        config["contexts"] += [{**own, "name": name} for name in CONTEXTS]
        (self.folder / "kubeconfig").write_text(yaml.safe_dump(config))

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def typed(self, text: str) -> list[str]:
        said = text.replace(API_SERVER, self.plane.url_inside)
        path = f"{self.bin}:{find_programs('kubectl', 'helm')}:{os.environ['PATH']}"
        return [
            *("nsenter", f"--net=/run/netns/{self.plane.netns}", "env", f"PATH={path}"),
            *(f"HOME={self.folder}", f"KUBECONFIG={self.folder / 'kubeconfig'}"),
            *("sh", "-euc", f"cd {self.folder}; {said}"),
        ]

    def starts(self, text: str, _marker: Mapping[str, str]) -> AbstractContextManager[Said]:
        return going_on(self.typed(text), self.folder / "stays.log", os.environ)


@contextlib.contextmanager
def in_a_cluster(world: KubeWorld) -> Iterator[Player]:
    """`at=NODE` is typed on that node, `at=nodes` on each, `at=checkout` in the checkout."""
    person = Administrator(world.plane, world.folder / "person")
    person.prepare(manifest_with_services(world))
    # As it was copied there, once `make image` has made it.
    (person.folder / "limpet.tar").symlink_to(CHECKOUT / "build" / "image" / "limpet.tar")

    known: dict[str, CompletedProcess[str]] = {}

    def on(machine: KubeMachine, text: str) -> list[str]:
        path = f"PATH={person.bin}:{_NODE_PATH}"
        return [*machine.system.prefix, "env", path, "sh", "-euc", f"cd {person.folder}; {text}"]

    def run(text: str, marker: Mapping[str, str], pasted: str) -> CompletedProcess[str]:
        at = marker.get("at", "")
        if at == "checkout":
            return launcher().run(["sh", "-euc", f"cd {CHECKOUT}; {text}"], input=pasted)
        if not at:
            done = known.get(text) or launcher().run(person.typed(text), input=pasted)
            if text == ONCE and not done.returncode:
                known[text] = done
            return done
        chosen = [each for each in world.kube_machines if at in ("nodes", each.label)]
        assert chosen, f"at={at}: there are {', '.join(world.machines)}"
        each_done = [launcher().run(on(each, text), input=pasted) for each in chosen]
        return next((each for each in each_done if each.returncode), each_done[-1])

    yield Player(run, {}, person.starts)


@contextlib.contextmanager
def something_outside(world: KubeWorld) -> Iterator[None]:
    """A server in the internet, which nodes reach by their routers."""
    address, netns = OUTSIDE[0], world.wires.backbone
    run_command("ip", "address", "add", f"{address}/32", "dev", "lo", netns=netns)
    with Namespace(f"/run/netns/{netns}") as there, there.entered():
        server = socket.create_server(OUTSIDE)
    with server:
        yield


def web_service() -> str:
    """The one whose name pages ask for."""
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    document = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    return json.dumps(document)


@contextlib.contextmanager
def at_the_edge(edge: Edge, folder: Path) -> Iterator[Player]:
    """On the machine, whose controller the API server takes for a pod; `at=cloud` is typed where an
    administrator is."""
    person = Administrator(edge.plane, folder / "person")
    person.prepare(MANIFEST.read_text())
    as_pod(edge.plane, "limpet-controller-a", PORT)
    machine, path = edge.machine, "/usr/local/bin:/usr/sbin:/usr/bin"
    machine.write("/usr/local/bin/limpet", (person.bin / "limpet").read_text())
    machine.path("/usr/local/bin/limpet").chmod(0o755)
    for address in CLOUD:
        where = ("dev", "uplink")
        run_command("ip", "address", "add", f"{address}/32", *where, netns=edge.plane.netns)

    def run(text: str, marker: Mapping[str, str], pasted: str) -> CompletedProcess[str]:
        if marker.get("at", "") == "cloud":
            return launcher().run(person.typed(text), input=pasted)
        words = ("sh", "-euc", f"cd /root; {text}")
        return machine.try_run(*words, env={"PATH": path}, stdin=pasted)

    yield Player(run, {})
