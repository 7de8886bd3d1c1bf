"""The image on a real containerd, with the rights and mounts that the manifests give its pods."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.beds.services.socket_bed import Cgroup
from tests.clients.containerd import _CONFIG
from tests.clients.machine import CHECKOUT, Machine, Process, remove_leftovers
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(
    1500
)  # the image is built: a minute or two, from a cold cache more

IMAGE = "limpet.dev/limpet:dev"
MOST_BYTES = 150_000_000
_DEFAULT_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP",
    "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
)  # fmt: skip
"""Source: containerd, oci/spec.go, defaultUnixCaps."""
AGENT_TOML = """\
segments = ["10.244.7.0/24", "fd00:7::/64"]
metrics_listen = ["127.0.0.1:9471"]
"""
CONTROLLER_TOML = """\
metrics_listen = ["127.0.0.1:9472"]
listen = ["0.0.0.0:7470"]
"""
BINARY = "/opt/cni/bin/limpet"
CONFLIST = "/etc/cni/net.d/10-limpet.conflist"


def pod_of(kind: str, name: str, text: str = "") -> dict[str, Any]:
    """The pod's specification in the manifests; `text`: of these."""
    manifests = text or (CHECKOUT / "deploy" / "limpet.yaml").read_text()
    for document in yaml.safe_load_all(manifests):
        if (document["kind"], document["metadata"]["name"]) == (kind, name):
            spec: dict[str, Any] = document["spec"]["template"]["spec"]
            return spec
    raise AssertionError(f"deploy/limpet.yaml has no {kind} {name}")


@pytest.fixture(scope="module")
def machine(archive: Path) -> Iterator[Machine]:
    """With containerd and the image."""
    subprocess.run([CHECKOUT / "scripts" / "fetch-runtimes"], check=True)
    remove_leftovers()
    with Machine() as machine:
        machine.write("/etc/containerd/config.toml", _CONFIG)
        machine.start("containerd")
        # What a node has, and a container gets from it.
        for file in ("/etc/hosts", "/etc/resolv.conf"):
            machine.write(file, "")
        # The first named namespace makes their folder a mount of its own, shared: as on any node.
        machine.run("ip", "netns", "add", "earlier")
        wait_until(lambda: machine.try_run("ctr", "version").returncode == 0, "containerd answers")
        machine.run("ctr", "image", "import", str(archive), timeout_s=300)
        yield machine


def container(
    machine: Machine, pod: dict[str, Any], spec: dict[str, Any], *arguments: str
) -> list[str]:
    """The command that runs a container of the pod as a kubelet would have it."""
    name = f"{spec['name']}-{len(list(machine.logs()))}-{abs(hash(arguments)) % 10000}"
    context = spec["securityContext"]
    wanted = context["capabilities"].get("add", [])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    command = [
        "ctr",
        "run",
        "--rm",
        "--net-host",
        "--seccomp",
        "--cgroup",
        f"/{machine.name}/{name}",
    ]
    if context["readOnlyRootFilesystem"]:
        command.append("--read-only")
    # ctr takes away last.
    for capability in set(_DEFAULT_CAPABILITIES) - set(wanted):
        command += ["--cap-drop", f"CAP_{capability}"]
    for capability in wanted:
        command += ["--cap-add", f"CAP_{capability}"]
    for mount in spec["volumeMounts"]:
        volume = volumes[mount["name"]]
        source = volume.get("hostPath", {}).get("path", f"/run/volumes/{mount['name']}")
        if volume.get("hostPath", {}).get("type", "DirectoryOrCreate") == "DirectoryOrCreate":
            machine.run("mkdir", "-p", source)
        propagation = "rslave" if mount.get("mountPropagation") == "HostToContainer" else "rprivate"
        options = f"rbind:{propagation}:{'ro' if mount.get('readOnly') else 'rw'}"
        command += ["--mount", f"type=bind,src={source},dst={mount['mountPath']},options={options}"]
    for variable in spec.get("env", []):
        if "value" in variable:  # else the kubelet knows it
            command += ["--env", f"{variable['name']}={variable['value']}"]
    return [*command, IMAGE, name, "limpet", *(arguments or spec["args"])]


def logs_of(process: Process) -> str:
    return process.log.read_text(errors="replace")


def test_it_is_small_and_says_what_it_is(archive: Path, machine: Machine) -> None:
    assert archive.stat().st_size < MOST_BYTES
    pod = pod_of("DaemonSet", "limpet-agent")

    said = machine.run(*container(machine, pod, pod["containers"][0], "--version"))

    assert said.strip() == "limpet 0.0.0.dev0"  # of no release


def test_a_node_gets_its_network_from_the_daemon_sets_containers(machine: Machine) -> None:
    pod = pod_of("DaemonSet", "limpet-agent")
    (install,), (agent,) = pod["initContainers"], pod["containers"]
    machine.write("/run/volumes/settings/agent.toml", AGENT_TOML)

    said = machine.run(*container(machine, pod, install)).splitlines()
    assert said == [f"{BINARY}: written", f"{CONFLIST}: written"]
    assert machine.run(*container(machine, pod, install)).splitlines() == [
        f"{BINARY}: up to date",
        f"{CONFLIST}: up to date",
    ]

    process = machine.start(*container(machine, pod, agent))
    wait_until(
        lambda: not process.running or is_well(machine, agent["readinessProbe"]["httpGet"]["port"]),
        "the agent is ready",
    )
    assert process.running, logs_of(process)

    # A pod whose namespace is made after the agent's container.
    machine.run("ip", "netns", "add", "pod")
    result = cni(machine, "ADD", "pod")
    addresses = [each["address"].partition("/")[0] for each in result["ips"]]
    assert [address.startswith(("10.244.7.", "fd00:7::")) for address in addresses] == [True, True]
    assert machine.run("cat", "/proc/sys/net/ipv4/ip_forward").strip() == "1"
    machine.ping_all(["10.244.7.1", "fd00:7::1"], netns="pod")
    machine.ping_all(addresses)
    cni(machine, "DEL", "pod")
    machine.run("ip", "netns", "delete", "pod")


def test_the_controller_starts(machine: Machine) -> None:
    pod = pod_of("Deployment", "limpet-controller")
    (controller,) = pod["containers"]
    # Its record in files of this machine: there is no API server here.
    state = {"name": "state", "mountPath": "/var/lib/limpet/controller"}
    with_files = {**controller, "volumeMounts": [*controller["volumeMounts"], state]}
    volume = {"name": "state", "hostPath": {"path": "/var/lib/limpet/controller"}}
    pod = {**pod, "volumes": [*pod["volumes"], volume]}
    machine.write("/run/volumes/settings/controller.toml", CONTROLLER_TOML)

    process = machine.start(*container(machine, pod, with_files))

    wait_until(
        lambda: (
            not process.running or is_well(machine, controller["readinessProbe"]["httpGet"]["port"])
        ),
        "the controller is ready",
    )
    assert process.running, logs_of(process)


_AT_THE_SOCKET = """
import sys
from pathlib import Path
from limpet.datapath.services.sockets.apply import PodNamespaces, SocketKernel
from limpet.datapath.services.sockets.pins_apply import AttachPoint, pins_of, remove_pins
from limpet.linux.bpf.place import find_root_cgroup
pins = pins_of(Path("/run/limpet"))
place = AttachPoint(pins, find_root_cgroup() / sys.argv[1])
kernel = SocketKernel(place, PodNamespaces(lambda: ()))
kernel.open()
kernel.attach()
print(pins, kernel.damage() or "attached")
kernel.close()
print(remove_pins(pins))
"""


def test_programs_at_the_socket_are_attached_from_within_a_pod(machine: Machine) -> None:
    """With the mounts that are comments in the manifest, and without any more rights."""
    text = (CHECKOUT / "deploy" / "limpet.yaml").read_text()
    pod = pod_of("DaemonSet", "limpet-agent", text.replace("# - {name: ", "- {name: "))
    machine.run("mount", "-t", "bpf", "bpf", "/sys/fs/bpf")
    cgroup = Cgroup()  # of the machine's root all programs of this machine would be in
    try:
        command = container(machine, pod, pod["containers"][0], "agent")
        at = command.index("limpet", command.index(IMAGE))
        said = machine.run(*command[:at], "python3.11", "-Ic", _AT_THE_SOCKET, cgroup.path.name)
    finally:
        cgroup.close()
    assert said.splitlines() == ["/run/limpet/bpf/limpet attached", "True"]


def is_well(machine: Machine, port: int) -> bool:
    url = f"http://127.0.0.1:{port}/healthz"
    return machine.try_run("busybox", "wget", "-q", "-O", "-", url).returncode == 0


def cni(machine: Machine, command: str, netns: str) -> Any:
    """What the installed binary answers to the installed configuration."""
    conflist = json.loads(machine.path(CONFLIST).read_text())
    conf = {**conflist["plugins"][0], "name": conflist["name"], "cniVersion": "1.0.0"}
    environment = {
        "CNI_COMMAND": command, "CNI_CONTAINERID": f"id-{netns}", "CNI_IFNAME": "eth0",
        "CNI_NETNS": f"/run/netns/{netns}", "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={netns}",
    }  # fmt: skip
    said = machine.run(BINARY, env=environment, stdin=json.dumps(conf))
    return json.loads(said) if said else None
