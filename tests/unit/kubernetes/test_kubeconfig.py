"""A kubeconfig is understood as kubectl does, or refused with its file and field."""

from __future__ import annotations

import base64
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from limpet.kubernetes.access.access import (
    Access,
    AccessError,
    ServerAddress,
    in_cluster_access,
    parse_server,
)
from limpet.kubernetes.access.kubeconfig import find_kubeconfig, read_kubeconfig

PEM = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
CONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "edge",
    "contexts": [
        {"name": "edge", "context": {"cluster": "far", "user": "agent", "namespace": "limpet"}},
        {"name": "other", "context": {"cluster": "near", "user": "nobody"}},
    ],
    "clusters": [
        {
            "name": "far",
            "cluster": {
                "server": "https://192.0.2.1:6443",
                "certificate-authority": "ca.crt",
                "tls-server-name": "kubernetes",
            },
        },
        {"name": "near", "cluster": {"server": "http://127.0.0.1:10261"}},
    ],
    "users": [
        {
            "name": "agent",
            "user": {
                "client-certificate-data": base64.b64encode(PEM).decode(),
                "client-key": "/etc/limpet/key.pem",
                "tokenFile": "token",
            },
        },
        {"name": "nobody", "user": {}},
    ],
}


def written(folder: Path, config: object, name: str = "config") -> Path:
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def changed(at: str, value: object) -> dict[str, Any]:
    """CONFIG with another value at a path such as `users.0.user.exec`."""
    config = deepcopy(CONFIG)
    *way, last = at.split(".")
    table: Any = config
    for part in way:
        table = table[int(part)] if isinstance(table, list) else table[part]
    table[last] = value
    return config


def test_the_current_context_counts_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIG)

    assert read_kubeconfig([path]) == Access(
        ServerAddress("192.0.2.1", 6443, tls=True),
        f"kubeconfig {path}, context edge",
        ca=tmp_path / "ca.crt",
        certificate=PEM,
        key=Path("/etc/limpet/key.pem"),
        token_file=tmp_path / "token",
        tls_name="kubernetes",
        namespace="limpet",
    )


def test_another_context_can_be_named(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIG)

    access = read_kubeconfig([path], "other")

    assert access.server == ServerAddress("127.0.0.1", 10261, tls=False)
    assert access.namespace == "default"


def test_yaml_as_tools_write_it_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
apiVersion: v1
clusters:
- cluster:
    server: https://api.example:6443/k8s/clusters/c-1/
  name: c
contexts: [{context: {cluster: c, user: u}, name: c}]
current-context: c
kind: Config
preferences: {}
users:
- name: u
  user: {token: abc.def}
""",
    )

    access = read_kubeconfig([path])

    assert str(access.server) == "https://api.example:6443/k8s/clusters/c-1"
    assert access.token == "abc.def"
    assert "abc.def" not in repr(access)


def test_of_several_files_the_first_that_has_a_name_counts(tmp_path: Path) -> None:
    without_users = {key: value for key, value in CONFIG.items() if key != "users"}
    first = written(tmp_path, without_users, "first")
    (tmp_path / "second").mkdir()
    second = written(tmp_path / "second", CONFIG)

    access = read_kubeconfig([first, second])

    assert access.ca == tmp_path / "ca.crt"
    assert access.token_file == tmp_path / "second" / "token"


def test_kubeconfig_names_files_of_which_those_count_that_are_there(tmp_path: Path) -> None:
    there = written(tmp_path, CONFIG)

    named = find_kubeconfig({"KUBECONFIG": f"/not/there:{there}"})

    assert named == [there]
    assert find_kubeconfig({"HOME": str(tmp_path)}) == []


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        ("current-context", "", "current-context: is not set .*edge, other"),
        ("current-context", "gone", "current-context: there is no context 'gone'.*edge, other"),
        ("contexts.0.context.cluster", "gone", r"contexts\[0\].context.cluster: there is no clus"),
        ("contexts.0.context.user", "gone", r"contexts\[0\].context.user: there is no user 'gone'"),
        ("contexts", {"a": 1}, "contexts: is no list"),
        ("contexts.0.context", [1], r"contexts\[0\].context: is no table"),
        ("kind", "Pod", "no kubeconfig"),
        ("clusters.0.cluster.server", "192.0.2.1:6443", r"clusters\[0\].cluster.server: .*no URL"),
        ("clusters.0.cluster.server", "http://192.0.2.1", "without TLS.*use https://"),
        ("clusters.0.cluster.server", 6443, "int is no text.*quotes"),
        ("clusters.0.cluster.insecure-skip-tls-verify", True, "would get the token.*authority"),
        ("clusters.0.cluster.proxy-url", "http://p", "proxy-url: proxies are not supported"),
        ("users.0.user.exec", {"command": "aws"}, r"users\[0\].user.exec: .*not run.*tokenFile"),
        ("users.0.user.auth-provider", {"name": "oidc"}, "auth-provider: .*not supported"),
        ("users.0.user.username", "admin", "username: API servers take no passwords"),
        ("users.0.user.as", "admin", "as: impersonation"),
        ("users.0.user.client-certificate-data", "%%", "client-certificate-data: is no base64"),
        ("users.0.user.client-certificate-data", "\ud800", "client-certificate-data: is no base64"),
        ("users.0.user.client-key", None, "client-key: is missing"),
        ("users.0.user.token", "a b", "token: has characters that no token has"),
    ],
)
def test_what_cannot_be_used_is_refused_with_file_and_field(
    tmp_path: Path, at: str, value: object, words: str
) -> None:
    path = written(tmp_path, changed(at, value))

    with pytest.raises(AccessError, match=words) as caught:
        read_kubeconfig([path])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "it is no YAML"),
        ("", "no kubeconfig"),
        ("\x00\x01", "it is no YAML"),
        ("&a [*a, *a]", "no kubeconfig"),
        ("[" * 100_000, "it is no YAML"),
        ("x" * (2 << 20), "larger than 1 MiB"),
    ],
)
def test_a_file_of_something_else_is_refused_in_words(
    tmp_path: Path, content: str, words: str
) -> None:
    with pytest.raises(AccessError, match=words):
        read_kubeconfig([written(tmp_path, content)])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=f"read kubeconfig {tmp_path}/no: No such file"):
        read_kubeconfig([tmp_path / "no"])


def test_a_pod_is_asked_for_its_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("limpet\n")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}

    access = in_cluster_access(environment, tmp_path)

    assert str(access.server) == "https://[fd00::1]:443"
    assert access.namespace == "limpet"
    assert access.token_file == tmp_path / "token"
    with pytest.raises(AccessError, match="this is no pod"):
        in_cluster_access({}, tmp_path)
    with pytest.raises(AccessError, match="automountServiceAccountToken"):
        in_cluster_access(environment, tmp_path / "nothing")


@pytest.mark.parametrize("value", ["!!timestamp x", "!!bool x", '!!int ""', "!!float x", "\xff"])
def test_what_breaks_the_yaml_library_is_refused_with_its_file(value: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b"kind: " + value.encode("latin-1"))

    with pytest.raises(AccessError, match=r"config: it is no YAML"):
        read_kubeconfig([path])


@pytest.mark.parametrize(
    "url",
    ["", "ftp://a", "https://", "https://u:p@a", "https://a:99999", "https://a b", "http://ä", "a"],
)
def test_what_is_no_url_of_an_api_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"no URL|no API server|without TLS"):
        parse_server(url)


def test_in_clear_only_this_machine_is_asked() -> None:
    assert parse_server("http://[::1]:80") == ServerAddress("::1", 80, tls=False)
    assert parse_server("http://localhost:8001").port == 8001
    with pytest.raises(ValueError, match="without TLS"):
        parse_server("http://127.0.0.1.example:80")
