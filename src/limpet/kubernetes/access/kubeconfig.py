"""kubeconfig files, as kubectl reads them. Source: k8s.io/client-go/tools/clientcmd/api/v1."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from limpet.base.bounds.servers import KUBECONFIG
from limpet.base.errors import LimpetError
from limpet.kubernetes.access.access import (
    Access,
    AccessError,
    Material,
    in_cluster_access,
    parse_server,
    plain_access,
)
from limpet.kubernetes.access.yaml_text import parse_yaml

_INSTEAD = "use a client certificate, a token or a tokenFile"
_REFUSED_OF_USER = {
    "exec": f"a program that makes tokens is not run ({_INSTEAD})",
    "auth-provider": f"providers of tokens are not supported ({_INSTEAD})",
    "username": f"API servers take no passwords since 1.19 ({_INSTEAD})",
    "password": f"API servers take no passwords since 1.19 ({_INSTEAD})",
    "as": f"impersonation is not supported ({_INSTEAD} of that user)",
    "as-uid": f"impersonation is not supported ({_INSTEAD} of that user)",
    "as-groups": f"impersonation is not supported ({_INSTEAD} of that user)",
    "as-user-extra": f"impersonation is not supported ({_INSTEAD} of that user)",
}
_REFUSED_OF_CLUSTER = {
    "insecure-skip-tls-verify": "whoever answers there would get the token (give the cluster's CA "
    "as certificate-authority or certificate-authority-data)",
    "proxy-url": "proxies are not supported (give an address that this machine reaches)",
}


class _Table:
    """A mapping of the file, with the words for what is wrong in it."""

    def __init__(self, path: Path, at: str, values: Mapping[str, Any]) -> None:
        self.path = path
        self.at = at
        self.values = values

    def problem(self, key: str, why: str) -> AccessError:
        where = f"{self.at}.{key}" if self.at and key else self.at or key
        return AccessError(f"read kubeconfig {self.path}: {where}: {why}")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.problem(key, f"{type(value).__name__} is no text (put it in quotes)")
        return value

    def refuse(self, words: Mapping[str, str]) -> None:
        for key, why in words.items():
            if self.values.get(key):
                raise self.problem(key, why)

    def file(self, key: str) -> Path | None:
        """Relative to the folder of the kubeconfig."""
        text = self.text(key)
        if "\0" in text:
            raise self.problem(key, "is no path")
        return self.path.parent / text if text else None

    def material(self, key: str) -> Material | None:
        """What `KEY-data` holds, else the file that `KEY` names."""
        if not (data := self.text(f"{key}-data")):
            return self.file(key)
        try:
            return base64.b64decode(data, validate=True)
        except ValueError as error:  # binascii.Error is one, and text that is not ASCII another
            raise self.problem(f"{key}-data", f"is no base64 ({error})") from error


def read_kubeconfig(paths: Sequence[Path], context: str = "") -> Access:
    """Access by a context of these files; of one name the first file's counts.

    `context`: empty: the current one of the first file that has one. Raises: AccessError that names
    file and field.
    """
    files = [_read(path) for path in paths]
    if not files:
        raise AccessError("read kubeconfig: no file is named")
    name = context or next((found for each in files if (found := each.text("current-context"))), "")
    if not name:
        known = ", ".join(sorted(_names(files, "contexts"))) or "none is there"
        raise files[0].problem("current-context", f"is not set (name one of its contexts: {known})")
    chosen = _named(files, "contexts", "context", name, "current-context" if not context else "")
    cluster = _named(files, "clusters", "cluster", chosen.text("cluster"), f"{chosen.at}.cluster")
    user = _Table(chosen.path, "", {})
    if chosen.text("user"):
        user = _named(files, "users", "user", chosen.text("user"), f"{chosen.at}.user")
    cluster.refuse(_REFUSED_OF_CLUSTER)
    user.refuse(_REFUSED_OF_USER)
    return _access(chosen, cluster, user, f"kubeconfig {chosen.path}, context {name}")


def find_kubeconfig(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The files that kubectl would read: those of KUBECONFIG, else that of the home folder."""
    if named := environment.get("KUBECONFIG", ""):
        return [Path(each) for each in named.split(os.pathsep) if each and os.path.exists(each)]
    found = Path(environment.get("HOME") or "/root") / ".kube" / "config"
    # Of another person's home it is not to be known: os.path.exists says no then.
    return [found] if os.path.exists(found) else []


def _access(chosen: _Table, cluster: _Table, user: _Table, source: str) -> Access:
    try:
        server = parse_server(cluster.text("server"))
    except ValueError as error:
        raise cluster.problem("server", str(error)) from error
    certificate, key = user.material("client-certificate"), user.material("client-key")
    if (certificate is None) != (key is None):
        lacking = "client-key" if key is None else "client-certificate"
        raise user.problem(lacking, "is missing: a certificate and its key go together")
    token = user.text("token")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise user.problem("token", "has characters that no token has")
    return Access(
        server,
        source,
        ca=cluster.material("certificate-authority"),
        certificate=certificate,
        key=key,
        token=token,
        token_file=user.file("tokenFile"),
        tls_name=cluster.text("tls-server-name"),
        namespace=chosen.text("namespace") or "default",
    )


def _read(path: Path) -> _Table:
    path = path.absolute()
    try:
        with open(path, "rb") as file:
            content = file.read(KUBECONFIG.most + 1)
    except OSError as error:
        raise AccessError(f"read kubeconfig {path}: {error.strerror}") from error
    if len(content) > KUBECONFIG.most:
        raise AccessError(f"read kubeconfig {path}: it is larger than {KUBECONFIG.most >> 20} MiB")
    try:
        document = _parse(content)
    except LimpetError:
        raise
    except (ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise AccessError(f"read kubeconfig {path}: it is no YAML: {words}") from error
    if not isinstance(document, dict) or document.get("kind", "Config") != "Config":
        raise AccessError(f"read kubeconfig {path}: it is no kubeconfig (kind is not Config)")
    return _Table(path, "", document)


def _parse(content: bytes) -> Any:
    """Raises: ValueError."""
    try:
        return json.loads(content)
    except ValueError:
        pass
    documents = parse_yaml(content)
    if len(documents) > 1:
        raise ValueError(f"it has {len(documents)} documents instead of one")
    return documents[0] if documents else None


def _entries(file: _Table, what: str) -> list[tuple[int, Mapping[str, Any]]]:
    found = file.values.get(what) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise file.problem(what, "is no list of tables with a name")
    return list(enumerate(found))


def _names(files: Sequence[_Table], what: str) -> set[str]:
    return {str(each.get("name")) for file in files for _, each in _entries(file, what)}


def _named(files: Sequence[_Table], what: str, inner: str, name: str, asked_by: str) -> _Table:
    """Raises: AccessError, where `asked_by` names what is not there."""
    for file in files:
        for at, entry in _entries(file, what):
            if str(entry.get("name")) == name:
                values = entry.get(inner) or {}
                table = _Table(file.path, f"{what}[{at}].{inner}", values)
                if not isinstance(values, dict):
                    raise table.problem("", "is no table")
                return table
    known = ", ".join(sorted(_names(files, what))) or "none"
    words = f"there is no {inner} {name!r} in {what} (known: {known})"
    raise files[0].problem(asked_by or what, words)


def find_access(kubeconfig: Path | None = None, *, context: str = "", server: str = "") -> Access:
    """What is named, else the files of KUBECONFIG, else the pod's account, else the home folder's.

    `server`: URL of the API server, in place of theirs. Raises: AccessError.
    """
    if server:
        access = find_access(kubeconfig, context=context)
        return replace(
            access, server=plain_access(server).server, source=f"{server}, {access.source}"
        )
    if kubeconfig is not None:
        return read_kubeconfig([kubeconfig], context)
    found = find_kubeconfig()
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        return in_cluster_access()
    if not found:
        raise AccessError(
            "find the API server: there is no kubeconfig (name one, set KUBECONFIG, or put it at "
            "~/.kube/config), and this is no pod"
        )
    return read_kubeconfig(found, context)
