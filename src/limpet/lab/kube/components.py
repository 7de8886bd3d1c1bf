"""The programs of a control plane: how each is started, and how it is asked whether it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Protocol

from limpet.lab.kube.certificates import Authority

SERVICE_NETWORKS = "10.96.0.0/16,fd00:96::/112"
ISSUER = "https://kubernetes.default.svc.cluster.local"
_ETCD_PORT = 2379
_NODE_LENGTHS = {4: 24, 6: 64}
"""Prefix lengths of a node's podCIDRs, by IP version."""


class Plane(Protocol):
    """What the flags are made of."""

    folder: Path
    addresses: tuple[str, ...]
    pod_networks: tuple[str, ...]
    authority: Authority
    etcd_data: Path


@dataclass(frozen=True, slots=True)
class Component:
    """One program of the control plane."""

    port: int
    """On loopback; the API server listens everywhere."""
    health: str
    """A path that is answered with 200 when it works."""
    flags: Callable[[Plane], list[str]]
    of_api: bool = False
    """An API server alone needs it too."""
    secure: bool = True


def _etcd(plane: Plane) -> list[str]:
    url = f"http://127.0.0.1:{_ETCD_PORT}"
    peer_url = f"http://127.0.0.1:{_ETCD_PORT + 1}"
    return [
        "--name=lab",
        f"--data-dir={plane.etcd_data}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=lab={peer_url}",
        # A lab that loses power is built anew.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _api_server(plane: Plane) -> list[str]:
    pki = plane.authority.folder
    return [
        f"--etcd-servers=http://127.0.0.1:{_ETCD_PORT}",
        f"--secure-port={API_SERVER.port}",
        "--bind-address=::",
        f"--advertise-address={plane.addresses[0]}",
        f"--tls-cert-file={pki}/server.crt",
        f"--tls-private-key-file={pki}/server.key",
        f"--client-ca-file={plane.authority.certificate}",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        # Nobody resolves nodes' names.
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/service-accounts.pub",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        f"--service-account-issuer={ISSUER}",
        f"--service-cluster-ip-range={SERVICE_NETWORKS}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def _controller_manager(plane: Plane) -> list[str]:
    pki = plane.authority.folder
    flags = [
        *_client(plane, "kube-controller-manager"),
        f"--service-account-private-key-file={pki}/service-accounts.key",
        f"--root-ca-file={plane.authority.certificate}",
        f"--cluster-signing-cert-file={plane.authority.certificate}",
        f"--cluster-signing-key-file={plane.authority.key}",
        "--use-service-account-credentials=true",
        f"--service-cluster-ip-range={SERVICE_NETWORKS}",
    ]
    if plane.pod_networks:
        flags += ["--allocate-node-cidrs=true", f"--cluster-cidr={','.join(plane.pod_networks)}"]
        versions = [ip_network(each).version for each in plane.pod_networks]
        for version in versions:
            size = "" if len(versions) == 1 else f"-ipv{version}"
            flags.append(f"--node-cidr-mask-size{size}={_NODE_LENGTHS[version]}")
    return flags


def _scheduler(plane: Plane) -> list[str]:
    return _client(plane, "kube-scheduler")


def _client(plane: Plane, name: str) -> list[str]:
    kubeconfig = plane.folder / f"{name}.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--tls-cert-file={plane.authority.folder}/server.crt",
        f"--tls-private-key-file={plane.authority.folder}/server.key",
        "--bind-address=127.0.0.1",
        # There is one of each; the lease of one that was killed would have to run out.
        "--leader-elect=false",
        "--profiling=false",
    ]


API_SERVER = Component(6443, "/readyz", _api_server, of_api=True)
COMPONENTS = {
    "etcd": Component(_ETCD_PORT, "/health", _etcd, of_api=True, secure=False),
    "kube-apiserver": API_SERVER,
    "kube-controller-manager": Component(10257, "/healthz", _controller_manager),
    "kube-scheduler": Component(10259, "/healthz", _scheduler),
}
"""By the name of the program, in the order in which they start."""
