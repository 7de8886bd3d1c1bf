"""Nobody but root may write what Limpet writes, nor read what is secret: docs/files.md is true."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from limpet.linux.namespaces import Namespace
from tests.beds.services.service_api import ServiceApi, service, slices
from tests.beds.tunnel_bed import wireguard_go
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import CONFIG, LIMPET, cni
from tests.cli.install.test_install_ebpf import (
    install_with_ebpf_asked_for,
    mount_bpffs,
    services_of,
)
from tests.cli.install.test_install_join import Cloud, cluster_of, joining
from tests.cli.install.test_install_tunnel import add_far_node, give_tun, has_tunnel
from tests.datapath.tunnel.ipsec.ipsec_bed import charon
from tests.lab.policies_of_all_nodes import POLICY
from tests.waiting import wait_until

_DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "files.md"
_UNITS = ("limpet-agent", "limpet-controller", "limpet-dns", "limpet-page")
_ROOTS = ("etc", "run", "var", "usr/lib/cni", "opt", "root", "dev/shm", "sys/fs/bpf")
_OF_OTHERS = ("/run/systemd/", "/run/netns/", "/var/tmp/systemd-", "/var/log/")


def modes(machine: ServiceMachine) -> dict[str, str]:
    """By path, as the document writes them, with the owner where that is not root."""
    root = machine.path("/")
    found = {}
    for top in _ROOTS:
        for folder, folders, files in os.walk(root / top):
            for each in (*folders, *files):
                path = Path(folder, each)
                try:
                    info = path.lstat()
                except FileNotFoundError:
                    continue  # it was written beside, and has its place now
                mode = "link" if stat.S_ISLNK(info.st_mode) else f"{stat.S_IMODE(info.st_mode):o}"
                owner = "" if info.st_uid == info.st_gid == 0 else f" {info.st_uid}:{info.st_gid}"
                found[f"/{path.relative_to(root)}"] = mode + owner
    return found


def documented() -> dict[str, str]:
    """Mode by pattern, the closest pattern first."""
    rows = re.findall(r"^\| `(/\S+)` \| (\w+) \|", _DOCUMENT.read_text(encoding="utf-8"), re.M)
    return dict(sorted(rows, key=lambda row: (row[0].count("*"), -len(row[0]))))


def expected(path: str, rows: dict[str, str]) -> str:
    for pattern, mode in rows.items():
        if fnmatchcase(path, pattern) and path.count("/") == pattern.count("/"):
            return mode
    return "not in the document"


def without_umask(machine: ServiceMachine) -> None:
    """Services of Limpet write with whatever mode they ask for."""
    for unit in _UNITS:
        machine.write(f"/etc/systemd/system/{unit}.service.d/umask.conf", "[Service]\nUMask=0\n")


def limpet(machine: ServiceMachine, *words: str) -> str:
    """As from a shell without a umask."""
    return machine.run("sh", "-c", 'umask 0; exec "$@"', "sh", *LIMPET, *words)


def assert_documented(machine: ServiceMachine, before: Mapping[str, str], *want: str) -> None:
    """All that was written since is in the document with its mode; `want`: patterns of what has to
    be among it. What the test itself has written is in `before`."""
    rows = documented()
    written = {
        path: mode
        for path, mode in modes(machine).items()
        if path not in before and not path.startswith(_OF_OTHERS)
    }
    assert {path: (mode, expected(path, rows)) for path, mode in written.items()} == {
        path: (expected(path, rows), expected(path, rows)) for path in written
    }
    missing = [each for each in want if not any(fnmatchcase(path, each) for path in written)]
    assert missing == [], sorted(written)


def test_every_path_has_the_owner_and_mode_that_the_document_says(machine: ServiceMachine) -> None:
    without_umask(machine)
    before = modes(machine)
    limpet(machine, "controller", "install", "--pod-cidr", "10.77.0.0/16")
    settings = machine.path("/etc/limpet/controller.toml")
    settings.write_text(f'page_listen = "[::]:7480"\n{settings.read_text()}')
    limpet(machine, "controller", "install")
    limpet(machine, "ui", "token", "create", "ann")
    before[CONFIG] = before["/root/policy.toml"] = "the test's own"
    machine.write(CONFIG, 'dns = "on"\n')
    token = limpet(machine, "token", "create").strip()
    limpet(machine, "install", "--controller", "127.0.0.1:7470", "--token", token)
    machine.run("ip", "netns", "add", "web-0")
    cni(machine, "ADD", "web-0")
    machine.write("/root/policy.toml", POLICY)
    limpet(machine, "policy", "apply", "/root/policy.toml")
    limpet(machine, "policy", "apply", "/root/policy.toml", "--cluster")
    limpet(machine, "pod", "label", "default/web-0", "app=web")
    limpet(machine, "controller", "backup", "/root/backup")
    keep_what_an_api_server_says(machine)

    assert_documented(
        machine,
        before,
        "/var/lib/limpet/cluster/node.key",
        "/var/lib/limpet/controller/page-tokens.json",
        "/var/lib/limpet/controller/page/page.key",
        "/var/lib/limpet/controller/page/page.crt",
        "/var/lib/limpet/controller/events/*",
        "/var/lib/limpet/policies.json",
        "/var/lib/limpet/policies-of-kubernetes.jsonl",
        "/var/lib/limpet/cluster/services.jsonl",
        "/var/lib/limpet/events/*",
    )
    for path in ("/etc", "/run", "/var", "/var/lib"):
        assert not machine.path(path).stat().st_mode & 0o022


def test_pins_of_ebpf_have_the_owner_and_mode_that_the_document_says(
    machine: ServiceMachine,
) -> None:
    """Folders are asked for with 700, whatever the bpffs lets in: who may write to one could put a
    map of his own in place of the agent's, which the next agent takes; who may open a map that is
    pinned writes where connections go, and who may open a link ends it. Pins are 600 by the kernel
    (bpf_obj_pin); a folder that somebody has opened is closed by the next agent."""
    without_umask(machine)
    mount_bpffs(machine, "-o", "mode=1777")
    before = modes(machine)
    install_with_ebpf_asked_for(machine)
    assert services_of(machine)["backend"] == "ebpf"
    before |= {CONFIG: "the test's own"}

    assert_documented(
        machine,
        before,
        "/sys/fs/bpf/limpet",
        "/sys/fs/bpf/limpet/links/limpet_connect4",
        "/sys/fs/bpf/limpet/maps-*/frontends",
    )
    folders = ("/sys/fs/bpf/limpet", "/sys/fs/bpf/limpet/links")
    machine.run("chmod", "777", *folders)
    machine.run("systemctl", "restart", "limpet-agent")
    wait_until(lambda: {modes(machine)[each] for each in folders} == {"700"}, "they are closed")


def keep_what_an_api_server_says(machine: ServiceMachine) -> None:
    """Returns when the agent, which hears Services and policies of one now, has written them."""
    with (
        Namespace(f"/proc/{machine.pid}/ns/net") as namespace,
        ServiceApi(namespace) as api,
    ):
        api.put(service("web", "10.96.0.10"), *slices("web", "10.77.0.9"))
        spec = {"podSelector": {}, "policyTypes": ["Ingress"]}
        api.put(
            {"kind": "Namespace", "metadata": {"name": "shop"}},
            {"kind": "NetworkPolicy", "metadata": {"name": "shut"}, "spec": spec},
        )
        settings = {"source": "kubernetes", "kubernetes_server": api.url}
        settings |= dict.fromkeys(("services", "policies", "dns"), "on")
        machine.write(CONFIG, "".join(f'{key} = "{value}"\n' for key, value in settings.items()))
        machine.run("systemctl", "restart", "limpet-agent")
        for kept in ("policies-of-kubernetes.jsonl", "cluster/services.jsonl"):
            wait_until(machine.path(f"/var/lib/limpet/{kept}").exists, f"{kept} is kept")


def test_what_tunnels_and_relays_write_has_the_owner_and_mode_that_the_document_says(
    machine: ServiceMachine,
) -> None:
    """With the programs of WireGuard and of IPsec, one after the other, and as a relay, by UDP and
    TLS: that one writes nothing of its own, its certificate is the node's."""
    without_umask(machine)
    give_tun(machine)
    machine.run("mkdir", "/mnt")  # which the fetched strongSwan lays itself over
    cloud = Cloud(machine).start()
    programs = {"tunnel_program": wireguard_go(), "ipsec_program": charon()}
    add_far_node(cloud, **programs)
    before = modes(machine)
    machine.write("/etc/limpet/agent.toml", "".join(f'{k} = "{v}"\n' for k, v in programs.items()))
    before |= dict.fromkeys(("/etc/limpet", CONFIG), "the test's own")

    limpet(machine, "install", *joining(cloud))
    wait_until(lambda: has_tunnel(machine), "there is a tunnel of WireGuard's")
    with_wireguard = modes(machine)
    cloud.ask("network", "set", "--tunnel-backend", "ipsec")
    wait_until(lambda: ipsec_sessions(machine), "there is one of IPsec's")
    cloud.ask("node", "set", "n1", "--role", "relay")
    wait_until(lambda: relays(machine), "the node is a relay")

    assert {*with_wireguard} - {*before} >= {"/run/limpet/wireguard.log"}
    assert_documented(machine, before, "/run/limpet/ipsec/*")


def ipsec_sessions(machine: ServiceMachine) -> int:
    found: int = (cluster_of(machine)["ipsec"] or {}).get("sessions", 0)
    return found


def relays(machine: ServiceMachine) -> bool:
    """Whether it serves others, in TLS too."""
    traversal = cluster_of(machine)["nat_traversal"]
    listens = (traversal["relaying_tls"] or {}).get("listen")
    return bool(listens) and bool((traversal["relaying"] or {}).get("active"))
