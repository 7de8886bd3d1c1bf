"""The system of a node: a root and a control group of its own, containerd, kubelet."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from limpet.lab.command import LabError, run_command
from limpet.lab.kube.cgroups import end_groups, into_groups
from limpet.lab.kube.image import write_image
from limpet.lab.kube.programs import find_programs
from limpet.lab.kube.runtimes import (
    BIN_DIR,
    CONF_DIR,
    REFERENCE_DIR,
    SOCKET,
    config,
    find_runtimes,
    shared_folders,
)
from limpet.lab.process import Daemon

STATIC_PODS = "/etc/kubernetes/manifests"
_BOOT = Path(__file__).with_name("boot")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BOOT_S, _START_S, _AGAIN_S = 60.0, 120.0, 1.0


class NodeSystem:
    """What runs on it ends with `power_off`; what it has on its disk (/var, /etc, /opt) stays."""

    def __init__(
        self, name: str, label: str, folder: Path, run_dir: Path, shared: Sequence[Path]
    ) -> None:
        """`name`: of its network namespace and its control group; `label`: of the node.

        `run_dir`: short, for sockets; `shared`: folders that are the same inside and outside.
        """
        self.name = name
        self.label = label
        self.folder = folder
        self.run_dir = run_dir
        self.shared = tuple(shared)
        self.kubelet_settings: dict[str, object] = {}
        """Keys of its kubelet's configuration that are other than the lab's."""
        self.oci_runtime = ""
        """What its containerd starts containers with; empty: runc."""
        self.root = self._daemon("root")
        self.containerd = self._daemon("containerd")
        self.kubelet = self._daemon("kubelet")

    def _daemon(self, what: str) -> Daemon:
        files = self.folder / f"{what}.pid", self.folder / f"{what}.log"
        return Daemon(f"{what} of {self.label}", *files)

    # Its life

    def boot(self) -> None:
        """Its root is there, /run empty; nothing runs in it. Raises: LabError."""
        up = self.folder / "up"
        self.folder.mkdir(parents=True, exist_ok=True)
        up.unlink(missing_ok=True)
        kubelet = find_programs("kubelet") / "kubelet"
        shared = {*shared_folders(), *map(str, self.shared), str(kubelet.resolve().parent)}
        self.root.start_and_ask(
            [
                *into_groups(self.name, root=True),
                *("nsenter", f"--net=/run/netns/{self.name}"),
                *("unshare", "--mount", "--ipc", "--uts", "--cgroup", "--propagation", "private"),
                *(str(_BOOT), self.name, str(self.folder), find_runtimes(), *sorted(shared)),
            ],
            up.exists,
            within_s=_BOOT_S,
        )

    def power_off(self) -> None:
        """Every process that ever came from it is gone. Raises: LabError."""
        for process in (self.kubelet, self.containerd, self.root):
            process.kill()
        end_groups(self.name)

    @property
    def prefix(self) -> list[str]:
        """A command in front of another: that one runs on the node, and ends with it."""
        target = f"--target={self.root.pid}"
        return [
            *into_groups(self.name),
            *("nsenter", target, "--mount", "--ipc", "--uts", "--net", "--cgroup", "--"),
        ]

    def run(self, *command: str) -> str:
        """What a command prints on the node. Raises: LabError."""
        return run_command(*self.prefix, "env", f"PATH={_PATH}", *command)

    def path(self, inside: str) -> Path:
        """How a file of the running node is reached from here."""
        return Path(f"/proc/{self.root.pid}/root{inside}")

    def write(self, inside: str, text: str) -> None:
        """A file of the running node, as a whole or not at all, with the folders that it needs."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)

    # Its programs

    def install_plugin(self, shim: Path, conflist_name: str, conflist: str) -> None:
        """The CNI binary, and last the file that makes containerd call it."""
        folder = self.path(BIN_DIR)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(shim, folder / "limpet")
        self.write(f"{CONF_DIR}/{conflist_name}", conflist)

    def start_containerd(self) -> None:
        """Returns when it answers; it has its image. Raises: LabError with its log."""
        self.write("/etc/containerd/config.toml", config(self.oci_runtime))
        self._install_loopback()
        self._start(self.containerd, ["containerd"])
        if not self.path("/var/lib/image.tar").exists():
            write_image(self.path("/var/lib/image.tar"), self.path("/usr/bin/busybox"))
            self.run("ctr", "-n", "k8s.io", "image", "import", "/var/lib/image.tar")

    def _install_loopback(self) -> None:
        """containerd before 2 needs it; packages bring it along."""
        loopback = self.path(BIN_DIR) / "loopback"
        loopback.parent.mkdir(parents=True, exist_ok=True)
        if not loopback.is_symlink():
            loopback.symlink_to(f"{REFERENCE_DIR}/loopback")

    def start_kubelet(self, kubeconfig: Path, ca: Path, addresses: Sequence[str]) -> None:
        """Returns when it runs; whether the node is Ready the API server knows. Raises: LabError.

        `addresses`: the node's own, one of each family.
        """
        self.write("/etc/kubernetes/kubelet.conf", kubeconfig.read_text(encoding="utf-8"))
        self.write("/etc/kubernetes/ca.crt", ca.read_text(encoding="utf-8"))
        self.write("/etc/kubernetes/kubelet.json", json.dumps(self._kubelet_settings(), indent=1))
        self.path(STATIC_PODS).mkdir(parents=True, exist_ok=True)
        program = (find_programs("kubelet") / "kubelet").resolve()
        command = [
            str(program),
            "--config=/etc/kubernetes/kubelet.json",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            "--root-dir=/var/lib/kubelet",
            "--cert-dir=/var/lib/kubelet/pki",
            f"--hostname-override={self.label}",
            f"--node-ip={','.join(addresses)}",
        ]
        # containerd says that it is ready a moment before it serves kubelets; on a machine of its
        # own systemd starts a kubelet that met that again.
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                return self._start(self.kubelet, command)
            except LabError as error:
                unready = "server is not initialized yet" in str(error)
                if not unready or time.monotonic() > deadline_s:
                    raise
            time.sleep(_AGAIN_S)

    def _start(self, process: Daemon, command: Sequence[str]) -> None:
        notify = self.run_dir / f"{process.what.split()[0]}.notify"
        process.start(
            [*self.prefix, *command],
            notify=notify,
            environment={"PATH": _PATH},
            within_s=_START_S,
        )

    def _kubelet_settings(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "clusterDNS": ["169.254.20.10"],
            "clusterDomain": "cluster.local",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "evictionHard": {"memory.available": "50Mi"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "podLogsDir": "/var/log/pods",
            "readOnlyPort": 0,
            "resolvConf": "",
            "staticPodPath": STATIC_PODS,
            **self.kubelet_settings,
        }
