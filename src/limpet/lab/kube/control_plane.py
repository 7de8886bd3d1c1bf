"""A Kubernetes control plane in a namespace: etcd, API server, controller manager, scheduler."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from limpet.lab.command import run_command
from limpet.lab.kube.certificates import Authority
from limpet.lab.kube.components import API_SERVER, COMPONENTS, Component
from limpet.lab.kube.programs import find_programs
from limpet.lab.process import Daemon

ADMINISTRATORS = "system:masters"
"""A group that may do everything, whatever RBAC says."""
_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
_FIRST_SERVICE = ("10.96.0.1", "fd00:96::1")
_WITHIN_S = 300.0
"""Time that a process has to start, or to end; the machine may be busy."""
_ANSWER_S = 10.0


class ControlPlane:
    """Its processes, certificates and kubeconfigs; all its files are in one folder.

    Whoever has only the folder (a later command) makes it again and finds it running.
    """

    def __init__(self, netns: str, folder: Path, addresses: Sequence[str]) -> None:
        """`netns` is there; `addresses` are its own (not loopback), the first is told to pods."""
        self.netns = netns
        self.folder = folder
        self.addresses = tuple(addresses)
        self.pod_networks: tuple[str, ...] = ()
        """What nodes get their podCIDRs from, one network of each family; empty: they get none."""
        self.authority = Authority(folder / "pki")
        self.kubeconfig = folder / "admin.kubeconfig"
        """An administrator's, for programs outside of the namespace."""
        self.etcd_data = folder / "etcd"
        self.processes = {
            name: Daemon(name, folder / f"{name}.pid", folder / f"{name}.log")
            for name in (*COMPONENTS, "forward")
        }

    # Life

    def start(self, *, only_api: bool = False) -> None:
        """All of it runs, and the API server says that it is ready; `only_api`: etcd and that one.

        Raises: LabError with the log of the one that does not come up.
        """
        self._prepare()
        for name, component in COMPONENTS.items():
            if component.of_api or not only_api:
                self.start_process(name)

    def start_process(self, name: str) -> None:
        """One of `COMPONENTS`, as it ran before; returns when it answers. Raises: LabError."""
        component = COMPONENTS[name]
        program = find_programs(name) / name
        self.processes[name].start_and_ask(
            ["nsenter", f"--net=/run/netns/{self.netns}", str(program), *component.flags(self)],
            lambda: self._answers(component),
            within_s=_WITHIN_S,
        )

    def stop_process(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it and waits for its end; SIGKILL for a crash. Raises: LabError.

        An API server that is asked to end waits a minute for those who watch.
        """
        self.processes[name].stop(number, within_s=_WITHIN_S)

    def restart_process(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Raises: LabError."""
        self.stop_process(name, number)
        self.start_process(name)

    def stop(self) -> None:
        """Ends all of them at once, as a loss of power does; the data stays. Raises: KernelError.

        An API server that holds gigabytes takes a while to give them back.
        """
        for process in self.processes.values():
            process.stop(signal.SIGKILL, within_s=_WITHIN_S)

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        hosts = [*_NAMES, *self.addresses, *_FIRST_SERVICE, "127.0.0.1", "::1"]
        self.authority.issue("server", "kube-apiserver", hosts=hosts)
        self.authority.issue("kubelet-client", "kube-apiserver", groups=[ADMINISTRATORS])
        self.authority.signing_key("service-accounts")
        for name in COMPONENTS:
            if not COMPONENTS[name].of_api:
                self.write_kubeconfig(name, f"system:{name}", inside=True)
        self._start_forwarding()
        self.write_kubeconfig("admin", "admin", groups=[ADMINISTRATORS])

    def _start_forwarding(self) -> None:
        """Ports of the machine's loopback that lead to the processes' own; always the same."""
        if self.processes["forward"].pid is not None:
            return
        path = self.folder / "ports.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        with ExitStack() as listeners:
            words, found = [], {}
            for component in COMPONENTS.values():
                listener = listeners.enter_context(socket.socket())
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", known.get(str(component.port), 0)))
                found[component.port] = listener.getsockname()[1]
                words.append((listener.fileno(), f"127.0.0.1:{component.port}"))
            path.write_text(json.dumps(found), encoding="utf-8")
            self.processes["forward"].start(
                [
                    *("nsenter", f"--net=/run/netns/{self.netns}"),
                    *(sys.executable, "-m", "limpet.lab.kube.forward"),
                    *(f"{descriptor}={target}" for descriptor, target in words),
                ],
                notify=self.folder / "forward.sock",
                inherit=[descriptor for descriptor, _ in words],
            )

    # Being asked

    @property
    def url(self) -> str:
        """URL of the API server, for programs outside of the namespace."""
        return f"https://127.0.0.1:{self.port_outside(API_SERVER.port)}"

    @property
    def url_inside(self) -> str:
        """URL of the API server, for whoever has a wire to the namespace."""
        address = self.addresses[0]
        host = f"[{address}]" if ":" in address else address
        return f"https://{host}:{API_SERVER.port}"

    def port_outside(self, port: int) -> int:
        """Port of the machine's loopback that leads to `port` of the namespace's."""
        ports = json.loads((self.folder / "ports.json").read_text(encoding="utf-8"))
        return int(ports[str(port)])

    def write_kubeconfig(
        self, file: str, user: str, *, groups: Sequence[str] = (), inside: bool = False
    ) -> Path:
        """For any user, in groups or not; `inside`: to be used on a wire to the namespace."""
        credentials = self.authority.issue(file, user, groups=groups)
        server = self.url_inside if inside else self.url
        path = self.folder / f"{file}.kubeconfig"
        return self.authority.write_kubeconfig(path, server, credentials)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """What kubectl prints, as an administrator. Raises: LabError with its complaint."""
        program = find_programs("kubectl") / "kubectl"
        return run_command(
            *(
                str(program),
                f"--kubeconfig={self.kubeconfig}",
                f"--cache-dir={self.folder}/kubectl",
                *words,
            ),
            stdin=stdin,
        )

    def environment(self) -> dict[str, str]:
        """For whoever has a wire to the namespace: `kubectl` there asks this API server."""
        kubeconfig = self.write_kubeconfig(
            "admin-inside", "admin", groups=[ADMINISTRATORS], inside=True
        )
        path = os.environ.get("PATH", os.defpath)
        return {
            "KUBECONFIG": str(kubeconfig),
            "KUBECACHEDIR": str(self.folder / "kubectl"),
            "PATH": f"{find_programs('kubectl')}:{path}",
        }

    def is_ready(self) -> bool:
        """The API server says so of itself."""
        return self._answers(API_SERVER)

    def _answers(self, component: Component) -> bool:
        port = self.port_outside(component.port)
        if component.secure:
            context = ssl.create_default_context(cafile=str(self.authority.certificate))
            user = self.authority.issue("admin", "admin", groups=[ADMINISTRATORS])
            context.load_cert_chain(user.certificate, user.key)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=_ANSWER_S, context=context
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
        try:
            connection.request("GET", component.health)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
