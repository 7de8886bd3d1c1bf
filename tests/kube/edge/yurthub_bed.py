"""A real YurtHub on a node with a root of its own."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpet.lab.command import LabError, run_command
from limpet.lab.kube.certificates import CertificateFiles
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.kube.programs import find_programs
from limpet.lab.process import Daemon
from tests.kube.flannel.flannel_bed import NAMESPACE
from tests.kube.flannel.flannel_move_bed import Mover
from tests.waiting import PATIENCE_S

URL = "http://127.0.0.1:10261"
TOKEN = "/var/lib/limpet-token"
_HEALTH_PORT = 10267
_PROGRAM = "/opt/yurthub"
_CACHE = "/var/lib/yurthub/cache"
_KINDS = {
    f"limpet.dev/v1alpha1/{plural}" for plural in ("clusternetworks", "nodegrants", "nodepresences")
}


@dataclass(frozen=True)
class YurtNode:
    """What is to be known of the machine that it runs on."""

    label: str
    folder: Path
    """Of this machine, for what it says."""
    around: list[str]
    """A command in front of another, which then runs there."""
    path: Callable[[str], Path]
    """How a file there is reached from here."""
    write: Callable[[str, str], None]
    """A file there."""

    @classmethod
    def of_mover(cls, mover: Mover) -> YurtNode:
        system = mover.system
        return cls(mover.label, mover.folder, mover.around, system.path, system.write)


class YurtHub:
    """With the kubelet's certificate, as it runs beside one."""

    def __init__(self, node: YurtNode, plane: ControlPlane) -> None:
        self.node = node
        self.plane = plane
        folder = node.folder
        self.daemon = Daemon("yurthub", folder / "yurthub.pid", folder / "yurthub.log")

    def prepare(self) -> None:
        """Its certificates, and the rights that OpenYurt's manifest gives it. Raises: LabError."""
        write, label = self.node.write, self.node.label
        user = f"system:node:{label}"
        kubeconfig = self.plane.write_kubeconfig(
            f"kubelet-{label}", user, groups=["system:nodes"], inside=True
        )
        authority = self.plane.authority
        client = authority.issue(f"kubelet-{label}", user, groups=["system:nodes"])
        server = authority.issue(f"yurthub-{label}", user, hosts=["127.0.0.1", "kubernetes"])
        write("/etc/kubernetes/kubelet.conf", kubeconfig.read_text())
        write("/etc/kubernetes/pki/ca.crt", authority.certificate.read_text())
        write("/var/lib/kubelet/pki/kubelet-client-current.pem", _both(client))
        # What its own CSR would bring, which nobody here approves.
        write("/var/lib/yurthub/pki/yurthub-server-current.pem", _both(server))
        rights = "--verb=get,list,watch", "--resource=configmaps,services,nodes"
        self.plane.kubectl("create", "clusterrole", "yurt-hub", *rights)
        self.plane.kubectl(
            *("create", "clusterrolebinding", "yurt-hub", "--clusterrole=yurt-hub"),
            "--group=system:nodes",
        )

    def start(self, *, online: bool = True) -> None:
        """Returns when it answers. Raises: LabError with its log."""
        program = self.node.path(_PROGRAM)
        if not program.exists():
            shutil.copy(find_programs("yurthub") / "yurthub", program)
        self.daemon.start_and_ask(
            [
                *self.node.around,
                _PROGRAM,
                "--bootstrap-mode=kubeletcertificate",
                f"--node-name={self.node.label}",
                f"--server-addr={self.plane.url_inside}",
                "--root-dir=/var/lib/yurthub",
                f"--disk-cache-path={_CACHE}",
                *("--enable-dummy-if=false", "--enable-resource-filter=false"),
                *("--enable-node-pool=false", "--enable-coordinator=false"),
                *("--heartbeat-interval-seconds=1", "--heartbeat-timeout-seconds=1"),
                *("--heartbeat-failed-retry=2", "--v=2"),
            ],
            self._answers,
            within_s=PATIENCE_S,
        )

    def has_torn_kinds(self) -> bool:
        """Whether it would not start again for its own file of the kinds that it has seen, or not
        list them: all that it has answered with stand there.

        Version 1.5 writes it whenever a custom resource is new, from several threads, without a
        lock. Source: pkg/yurthub/kubernetes/meta/restmapper.go, updateCachedDynamicRESTMapper.
        """
        try:
            kinds = json.loads(self._kinds.read_bytes() or b"{}")
        except ValueError:
            return True
        return not kinds.keys() >= _KINDS

    def forget_kinds(self) -> None:
        """While it is stopped: what docs/how-to/openyurt.md says to do about a torn file."""
        self._kinds.unlink()

    def kept(self, agent: str, path: str) -> dict[str, Any]:
        """What the agent has asked for, as it is on the disk; empty if it is not, or half written.

        `path`: `nodes.v1.core/crane-1`.

        YurtHub passes an answer on before it has written it down, on threads of its own.
        """
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(
                self.node.path(f"{_CACHE}/{agent}/{path}").read_bytes()
            )
            return found
        return {}

    @property
    def _kinds(self) -> Path:
        return self.node.path(f"{_CACHE}/_internal/restmapper/cache-crd-restmapper.conf")

    def _answers(self) -> bool:
        with contextlib.suppress(LabError):
            return bool(self.get("/v1/healthz", port=_HEALTH_PORT))
        return False

    def get(self, path: str, *, agent: str = "limpet", port: int = 10261) -> str:
        """What it answers on the node to whoever has the agent's token. Raises: LabError."""
        token = self.node.path(TOKEN)
        bearer = token.read_text() if token.exists() else ""
        return run_command(
            *self.node.around,
            "python3",
            "-c",
            _GET,
            f"http://127.0.0.1:{port}{path}",
            agent,
            bearer,
        )


_GET = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"User-Agent": sys.argv[2]})
if sys.argv[3]:
    request.add_header("Authorization", "Bearer " + sys.argv[3])
print(urllib.request.urlopen(request, timeout=5).read().decode())
"""


def _both(credentials: CertificateFiles) -> str:
    return credentials.certificate.read_text() + credentials.key.read_text()


def agents_token(plane: ControlPlane, node: str) -> str:
    """As the kubelet of the node puts it into the agent's pod. Raises: LabError."""
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"limpet-agent-{node}", "namespace": NAMESPACE},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "limpet-agent",
            "containers": [{"name": "agent", "image": "none"}],
        },
    }
    plane.kubectl("create", "-f", "-", stdin=json.dumps(pod))
    bound = ("--bound-object-kind=Pod", f"--bound-object-name=limpet-agent-{node}")
    return plane.kubectl("create", "token", "limpet-agent", "-n", NAMESPACE, *bound).strip()
