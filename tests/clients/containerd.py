"""containerd on a machine, driven through the CRI as a kubelet drives it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from limpet.lab.kube.image import IMAGE, write_image
from tests.clients.machine import Machine, Process
from tests.clients.networks import BIN_DIR, CONF_DIR, Network
from tests.waiting import wait_until

SOCKET = "/run/containerd/containerd.sock"
HTTP_PORT = 80
_CALL_LIMIT_S = 60.0
_EXEC_LIMIT_S = 5
_uids = itertools.count(1)

_CONFIG = f"""
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
disable_apparmor = true
sandbox_image = "{IMAGE}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{BIN_DIR}"
conf_dir = "{CONF_DIR}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""

# Any: the messages are made from cri.proto when this is imported.
cri: Any
_services: Any
cri, _services = grpc.protos_and_services("tests/clients/cri.proto")


@dataclass(frozen=True)
class Pod:
    """A running sandbox, and the configuration that it was made from."""

    id: str
    config: Any
    addresses: tuple[str, ...]
    """As PodSandboxStatus gives them."""

    @property
    def name(self) -> str:
        return str(self.config.metadata.name)

    @property
    def v4(self) -> str:
        return next(address for address in self.addresses if ":" not in address)

    @property
    def v6(self) -> str:
        return next(address for address in self.addresses if ":" in address)


def url(address: str, port: int = HTTP_PORT) -> str:
    return f"http://[{address}]:{port}/" if ":" in address else f"http://{address}:{port}/"


@contextmanager
def containerd_on(machine: Machine, network: Network) -> Iterator[Containerd]:
    """containerd with its image, and `network` as the network of its pods."""
    network.install()
    network.start()
    network.write_conflist()
    containerd = Containerd(machine, network)
    try:
        containerd.install()
        yield containerd
    finally:
        containerd.close()


class Containerd:
    """containerd, its socket and its pods. Calls raise grpc.RpcError as the CRI reports errors."""

    def __init__(self, machine: Machine, network: Network) -> None:
        self.machine = machine
        self.network = network
        self.process: Process | None = None
        self._channel: grpc.Channel | None = None
        self._service: Any = None

    def install(self) -> None:
        """Write the configuration, start containerd and give it its image."""
        self.machine.write("/etc/containerd/config.toml", _CONFIG)
        self.start()
        archive = self.machine.path("/tmp/image.tar")
        write_image(archive, self.machine.path("/usr/bin/busybox"))
        self.machine.run("ctr", "-n", "k8s.io", "image", "import", "/tmp/image.tar")

    def start(self) -> None:
        """Start containerd; returns when its CRI answers."""
        self.close()
        self.process = self.machine.start("containerd", env=self.network.environment)
        socket = self.machine.path(SOCKET)
        wait_until(socket.exists, "containerd makes its socket")
        self._channel = grpc.insecure_channel(
            f"unix:{socket}",
            options=[
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 100),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._service = _services.RuntimeServiceStub(self._channel)
        wait_until(self._initialized, "containerd's CRI is initialized")

    def _initialized(self) -> bool:
        try:
            self._call("Status", cri.Empty())
        except grpc.RpcError as error:
            if "not initialized yet" in str(error):  # it recovers what ran before
                return False
            raise
        return True

    def kill(self) -> None:
        """As a crash: shims, containers and running plugins stay."""
        assert self.process is not None
        self.process.kill()

    def close(self) -> None:
        """Give up the connection to it."""
        if self._channel is not None:
            self._channel.close()

    def _call(self, method: str, request: Any) -> Any:
        return getattr(self._service, method)(request, timeout=_CALL_LIMIT_S, wait_for_ready=True)

    def network_ready(self) -> tuple[bool, str]:
        """NetworkReady of the runtime's status, and the reason where it is not."""
        status = self._call("Status", cri.Empty()).status
        (condition,) = [one for one in status.conditions if one.type == "NetworkReady"]
        return condition.status, condition.message

    def pod_config(
        self,
        name: str,
        *,
        namespace: str = "default",
        attempt: int = 0,
        host_ports: Mapping[int, int] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Any:
        """What a kubelet asks for. `host_ports`: container port per port of the node, TCP."""
        return cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(
                name=name, namespace=namespace, uid=f"uid-{next(_uids)}", attempt=attempt
            ),
            hostname=name,
            log_directory="/tmp",
            port_mappings=[
                cri.PortMapping(host_port=host, container_port=port)
                for host, port in (host_ports or {}).items()
            ],
            annotations=annotations,
            linux=cri.LinuxPodSandboxConfig(cgroup_parent=f"/{self.machine.name}"),
        )

    def run_pod(self, config: Any) -> Pod:
        request = cri.RunPodSandboxRequest(config=config)
        return self.pod(self._call("RunPodSandbox", request).pod_sandbox_id, config)

    def pod(self, sandbox: str, config: Any) -> Pod:
        network = self._call("PodSandboxStatus", _sandbox(sandbox)).status.network
        addresses = (network.ip, *(extra.ip for extra in network.additional_ips))
        return Pod(sandbox, config, addresses)

    def stop_pod(self, sandbox: str) -> None:
        self._call("StopPodSandbox", _sandbox(sandbox))

    def remove_pod(self, sandbox: str) -> None:
        """Removal; containerd sends the second DEL here, without a namespace."""
        self._call("RemovePodSandbox", _sandbox(sandbox))

    def remove_all_pods(self) -> None:
        for sandbox in self.sandboxes():
            self.stop_pod(sandbox)
            self.remove_pod(sandbox)

    def sandboxes(self) -> dict[str, str]:
        """Pod name per sandbox id, of all that containerd knows."""
        items = self._call("ListPodSandbox", cri.Empty()).items
        return {item.id: item.metadata.name for item in items}

    def run_container(self, pod: Pod, name: str, command: Sequence[str]) -> str:
        """Create and start a container; gives its id."""
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image=IMAGE),
            command=command,
            log_path=f"{pod.id}.log",
        )
        request = cri.CreateContainerRequest(
            pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config
        )
        container = str(self._call("CreateContainer", request).container_id)
        self._call("StartContainer", cri.ContainerId(container_id=container))
        return container

    def serve_http(self, pod: Pod) -> str:
        """A container in `pod` that answers HTTP with the pod's name; gives its id."""
        script = f"echo {pod.name} > /www/index.html; exec httpd -f -p {HTTP_PORT} -h /www"
        container = self.run_container(pod, "server", ["/bin/sh", "-c", script])
        wait_until(
            lambda: self.execute(container, "wget", "-q", "-O-", "http://127.0.0.1/")[0] == 0,
            f"the server of {pod.name} answers itself",
        )
        return container

    def execute(self, container: str, *command: str) -> tuple[int, str]:
        """Exit code and output of a command in a container."""
        request = cri.ExecSyncRequest(container_id=container, cmd=command, timeout=_EXEC_LIMIT_S)
        answer = self._call("ExecSync", request)
        return answer.exit_code, (answer.stdout + answer.stderr).decode()

    def fetch(self, container: str, from_url: str) -> str:
        """What an HTTP server answers to a container."""
        code, output = self.execute(container, "wget", "-q", "-O", "-", from_url)
        assert code == 0, f"fetching {from_url}: {output}"
        return output.strip()

    def stop_container(self, container: str) -> None:
        self._call("StopContainer", cri.ContainerId(container_id=container))
        self._call("RemoveContainer", cri.ContainerId(container_id=container))


def _sandbox(sandbox: str) -> Any:
    return cri.PodSandboxId(pod_sandbox_id=sandbox)
