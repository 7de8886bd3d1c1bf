"""Where the API server is, and as whom it is asked: values, from a file or the pod's account."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from limpet.base.errors import LimpetError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account. Source: kubernetes.io, accessing the API from a pod."""

Material = bytes | Path
"""PEM as it is, or the file that it is in, which is read anew when it changes."""


class AccessError(LimpetError):
    """Nothing says where the API server is, or what says it cannot be used."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    host: str
    port: int
    tls: bool
    path: str = ""
    """Before each path of the API, as proxies for several clusters have it."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True)
class Access:
    """All that is needed to ask an API server. What is secret is not shown."""

    server: ServerAddress
    source: str
    """What says so, for a person: "kubeconfig /root/.kube/config, context edge"."""
    ca: Material | None = None
    """None: the machine's own authorities count."""
    certificate: Material | None = None
    key: Material | None = field(default=None, repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    """Counts before `token`, and is read anew when it changes."""
    tls_name: str = ""
    """Name that the server's certificate is for, where that is not its host."""
    namespace: str = "default"
    is_cache: bool = False
    """It keeps what it was asked for, and answers with that while the API server is away."""


def parse_server(url: str) -> ServerAddress:
    """`https://host[:port][/path]`, or `http://` to this machine's loopback.

    Raises: ValueError in words.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii():
        raise ValueError(f"{url!r} is no URL as https://192.0.2.1:6443")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a user, a query or a fragment, which no API server has")
    if not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} has characters that no URL has")
    tls = parts.scheme == "https"
    if not tls and not _is_loopback(parts.hostname):
        raise ValueError(
            f"{url} is without TLS, which is for a cache on this machine only "
            "(http://127.0.0.1:10261): whoever is on the way could read the token (use https://)"
        )
    return ServerAddress(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def plain_access(url: str) -> Access:
    """A server's address alone, as of a cache on this machine. Raises: AccessError."""
    try:
        server = parse_server(url)
    except ValueError as error:
        raise AccessError(f"use API server {url}: {error}") from error
    return Access(server, f"address {url}")


def in_cluster_access(
    environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT, *, server: str = ""
) -> Access:
    """The account of the pod that this runs in. Raises: AccessError.

    `server`: URL in place of what the environment says, which is an address that a Service proxy
    has to translate.
    """
    if server:
        at, source = plain_access(server).server, f"{server}, the pod's service account"
    else:
        at, source = _told_server(environment), "the pod's service account"
    if not (account / "token").exists():
        raise AccessError(
            f"use the pod's service account: {account / 'token'} is not there (is "
            "automountServiceAccountToken false in its spec?)"
        )
    return Access(
        at,
        source,
        ca=account / "ca.crt",
        token_file=account / "token",
        namespace=_namespace(account / "namespace"),
    )


def _told_server(environment: Mapping[str, str]) -> ServerAddress:
    """As each pod is told. Raises: AccessError."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise AccessError(
            "use the pod's service account: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT "
            "are not set, so this is no pod (give a kubeconfig file instead)"
        )
    return ServerAddress(host, int(port), tls=True)


def _namespace(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip() or "default"
    except (OSError, ValueError):
        return "default"
