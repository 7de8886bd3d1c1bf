"""How names are answered on this machine: the process is asked, and so is each of its addresses."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from limpet.agent.client import AnotherVersion
from limpet.base.addresses import Address
from limpet.base.disk import read_regular
from limpet.base.errors import LimpetError
from limpet.base.settings import DnsSettings
from limpet.cli.doctor.findings import Finding, error
from limpet.cli.doctor.names.findings import (
    address_findings,
    another_version,
    kubelet_findings,
    pod_findings,
    status_findings,
)
from limpet.cli.install.units.service import systemd_runs
from limpet.cli.names import ask_names
from limpet.cni.resolv_conf import parse_resolv_conf
from limpet.dns.status.answers import NamesStatus
from limpet.kubernetes.access.yaml_text import parse_yaml

KUBELET_CONFIGS = (
    Path("/var/lib/kubelet/config.yaml"),
    Path("/etc/kubernetes/kubelet.json"),
    Path("/etc/kubernetes/kubelet-config.yaml"),
)
SANDBOXES = "io.containerd.grpc.v1.cri/sandboxes/*/resolv.conf"
SANDBOX_ROOTS = (Path("/var/lib/containerd"), Path("/run/containerd"))
_ANSWER_S = 2.0
_TRIES = 3
_TXT = b"\0\x10\0\1"


def examine_names(settings: DnsSettings, run_dir: Path) -> Iterator[Finding]:
    """Nothing where names are off."""
    if settings.dns == "off":
        return
    try:
        status = ask_names(run_dir, {"ask": "status"}, NamesStatus)
    except AnotherVersion as problem:
        yield another_version(str(problem))
    except LimpetError as problem:
        yield error(
            "dns-silent",
            str(problem),
            "pods that ask this node for names wait in vain",
            "systemctl start limpet-dns" if systemd_runs() else "kubectl apply -f deploy/dns.yaml",
        )
    else:
        yield from status_findings(status)
        silent = [each for each in settings.listen if not _answers(each, settings.domain)]
        yield from address_findings(list(map(str, silent)))
    listen = list(map(str, settings.listen))
    for path in KUBELET_CONFIGS:
        if path.is_file():
            yield from kubelet_findings(_cluster_dns(path), listen, str(path))
    yield from pod_findings(find_elsewhere(SANDBOX_ROOTS, settings), settings.domain)


def _answers(address: Address, domain: str) -> bool:
    """Where the kernel has no such family, nobody asks there."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    labels = ["dns-version", *domain.split(".")]
    name = b"".join(bytes((len(each),)) + each.encode() for each in labels) + b"\0"
    question = b"\0\1\1\0\0\1\0\0\0\0\0\0" + name + _TXT
    try:
        client = socket.socket(family, socket.SOCK_DGRAM)
    except OSError:
        return True
    with client:
        client.settimeout(_ANSWER_S)
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):
                client.connect((str(address), 53))
                client.send(question)
                if client.recv(4096)[:2] == question[:2]:
                    return True
    return False


def _cluster_dns(path: Path) -> list[str] | None:
    """None: the file says nothing that is understood."""
    try:
        documents = parse_yaml(read_regular(path))
    except (OSError, ValueError):
        return None
    document = documents[0] if documents else None
    if not isinstance(document, dict) or document.get("kind") != "KubeletConfiguration":
        return None
    told = document.get("clusterDNS") or []
    return [str(each) for each in told] if isinstance(told, list) else None


def find_elsewhere(roots: tuple[Path, ...], settings: DnsSettings) -> dict[str, tuple[str, ...]]:
    """Pods of containerd that look for names of the cluster, and at no address of this node."""
    listen = set(map(str, settings.listen))
    suffix = re.compile(rf"^([^.]+\.)?svc\.{re.escape(settings.domain)}$")
    found: dict[str, tuple[str, ...]] = {}
    for root in roots:
        for path in sorted(root.glob(SANDBOXES)):
            try:
                said = parse_resolv_conf(path.read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue  # it ends just now
            if any(map(suffix.match, said.search)) and not listen & set(said.nameservers):
                found[_name_of(path)] = said.nameservers
    return found


def _name_of(resolv_conf: Path) -> str:
    """The pod's name, which is its host name; else the sandbox's number."""
    folder = resolv_conf.parent
    with contextlib.suppress(OSError):
        return (folder / "hostname").read_text(encoding="utf-8").strip()
    return folder.name[:12]
