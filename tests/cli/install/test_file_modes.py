"""Nobody but root may write what Limpet writes, nor read what is secret: docs/files.md is true.

Each test says which rows of the page come about in it. What is written and has no row fails, and so
does a row that no test claims."""

from __future__ import annotations

import json
from collections.abc import Mapping

from limpet.linux.namespaces import Namespace
from tests.beds.services.service_api import ServiceApi, service, slices
from tests.beds.tunnel_bed import wireguard_go
from tests.beds.written_files import differences, documented, rows_of
from tests.beds.written_files import modes as modes_below
from tests.cli.bundle.test_site_bundle import released
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import CONFIG, LIMPET, cni
from tests.cli.install.test_install_ebpf import (
    install_with_ebpf_asked_for,
    mount_bpffs,
    services_of,
)
from tests.cli.install.test_install_join import CONTROLLER, Cloud, cluster_of, joining
from tests.cli.install.test_install_tunnel import add_far_node, give_tun, has_tunnel
from tests.datapath.tunnel.ipsec.ipsec_bed import charon
from tests.lab.policies_of_all_nodes import POLICY
from tests.packages.rows import PACKAGED
from tests.waiting import wait_until

_UNITS = ("limpet-agent", "limpet-controller", "limpet-dns", "limpet-page")
_ROOTS = (
    *("etc", "run", "var", "usr/lib/cni", "usr/lib/limpet", "usr/local/bin", "opt", "root"),
    *("dev/shm", "sys/fs/bpf"),
)
_OF_OTHERS = ("/run/systemd/", "/run/netns/", "/var/tmp/systemd-", "/var/log/")

_NODE = {
    *("/etc/cni", "/etc/cni/net.d", "/etc/cni/net.d/10-limpet.conflist", "/usr/lib/cni/limpet"),
    "/etc/systemd/system/limpet-*.service",
    "/etc/systemd/system/multi-user.target.wants/limpet-*.service",
    *("/run/limpet", "/run/limpet/agent.lock", "/run/limpet/attachments"),
    "/run/limpet/plan.json",
    *("/var/lib/cni", "/var/lib/cni/networks", "/var/lib/cni/networks/*"),
    "/var/lib/cni/networks/*/*",
    *("/var/lib/limpet", "/var/lib/limpet/installed.json", "/var/lib/limpet/sysctls.json"),
    *("/var/lib/limpet/events", "/var/lib/limpet/events/*"),
    *("/var/lib/limpet/cluster", "/var/lib/limpet/cluster/*"),
    *("/var/lib/limpet/cluster/node.key", "/var/lib/limpet/cluster/node.key.pem"),
}
"""What any node of a cluster has."""
_INSTALLED = {
    *_NODE,
    *("/etc/limpet", "/etc/limpet/agent.toml", "/etc/limpet/controller.toml"),
    *("/root/backup", "/root/limpet-bugreport.tar.gz", "/root/harbour.tar"),
    *("/run/limpet/agent.sock", "/run/limpet/controller.sock", "/run/limpet/dns.sock"),
    *("/run/limpet/dns-held.sock", "/run/limpet/services-changes.jsonl", "/run/limpet/here.json"),
    *("/run/limpet/attachments/*.json", "/run/limpet/forward-rules"),
    *("/var/lib/limpet/policies.json", "/var/lib/limpet/policies-of-kubernetes.jsonl"),
    "/var/lib/limpet/*.damaged",
    *("/var/lib/limpet/controller", "/var/lib/limpet/controller/*"),
    "/var/lib/limpet/controller/controller.db*",
    *("/var/lib/limpet/controller/events", "/var/lib/limpet/controller/events/*"),
    "/var/lib/limpet/controller/page-tokens.json",
    *("/var/lib/limpet/controller/page", "/var/lib/limpet/controller/page/*"),
    "/var/lib/limpet/controller/page/page.key",
}
_EBPF = {
    *("/sys/fs/bpf/limpet", "/sys/fs/bpf/limpet/links", "/sys/fs/bpf/limpet/links/*"),
    *("/sys/fs/bpf/limpet/maps-*", "/sys/fs/bpf/limpet/maps-*/*"),
    *("/sys/fs/bpf/limpet/noted-*", "/sys/fs/bpf/limpet/noted-*/*"),
}
_WIREGUARD = {"/run/limpet/wireguard.log", "/run/wireguard", "/run/wireguard/limwg*.sock"}
_IPSEC = {"/run/limpet/ipsec", "/run/limpet/ipsec/*"}
_MOVED = {
    *("/etc/limpet/shim.conf", "/var/lib/limpet/flannel.json"),
    *("/var/lib/limpet/cluster.anew", "/var/lib/limpet/cluster.anew/*"),
    *("/var/lib/limpet/cluster.old-*", "/var/lib/limpet/cluster.old-*/*"),
}


def modes(machine: ServiceMachine) -> dict[str, str]:
    return modes_below(machine.path("/"), _ROOTS)


def without_umask(machine: ServiceMachine) -> None:
    """Services of Limpet write with whatever mode they ask for."""
    for unit in _UNITS:
        machine.write(f"/etc/systemd/system/{unit}.service.d/umask.conf", "[Service]\nUMask=0\n")


def limpet(machine: ServiceMachine, *words: str) -> str:
    """As from a shell without a umask."""
    return machine.run("sh", "-c", 'umask 0; exec "$@"', "sh", *LIMPET, *words)


def written(machine: ServiceMachine, before: Mapping[str, str]) -> dict[str, str]:
    """Modes of what was written since. What the test itself has written is in `before`."""
    return {
        path: mode
        for path, mode in modes(machine).items()
        if path not in before and not path.startswith(_OF_OTHERS)
    }


def assert_documented(
    machine: ServiceMachine, before: Mapping[str, str], claimed: set[str]
) -> None:
    """All that was written since is on the page with its mode; `claimed`: rows of the page that it
    fills."""
    wait_until(
        lambda: not claimed - rows_of(written(machine, before)),
        f"something is written for each of {sorted(claimed)}",
    )
    assert differences(written(machine, before)) == {}


def test_each_row_of_the_page_is_written_in_one_of_the_tests() -> None:
    claimed = _INSTALLED | _EBPF | _WIREGUARD | _IPSEC | _MOVED | PACKAGED

    assert claimed == documented().keys()


def test_every_path_has_the_owner_and_mode_that_the_document_says(machine: ServiceMachine) -> None:
    """The agent's own configuration is as `install` has made it: writing to it keeps its mode."""
    without_umask(machine)
    before = modes(machine)
    limpet(machine, "controller", "install", "--pod-cidr", "10.77.0.0/16")
    settings = machine.path("/etc/limpet/controller.toml")
    settings.write_text(f'page_listen = "[::]:7480"\n{settings.read_text()}')
    limpet(machine, "controller", "install")
    limpet(machine, "ui", "token", "create", "ann")
    token = limpet(machine, "token", "create").strip()
    limpet(machine, "install", "--controller", "127.0.0.1:7470", "--token", token)
    machine.write(CONFIG, 'dns = "on"\n')
    limpet(machine, "install")
    machine.run("ip", "netns", "add", "web-0")
    cni(machine, "ADD", "web-0")
    machine.write("/root/policy.toml", POLICY)
    limpet(machine, "policy", "apply", "/root/policy.toml")
    limpet(machine, "policy", "apply", "/root/policy.toml", "--cluster")
    limpet(machine, "pod", "label", "default/web-0", "app=web")
    limpet(machine, "controller", "backup", "/root/backup")
    limpet(machine, "bugreport", "--file", "/root/limpet-bugreport.tar.gz")
    bundle = f"/root/{released(machine.path('/root')).name}"
    limpet(machine, "bundle", bundle, "/root/harbour.tar", "--controller", CONTROLLER)
    keep_what_an_api_server_says(machine)
    before |= dict.fromkeys(("/root/policy.toml", bundle), "the test's own")

    assert_documented(machine, before, _INSTALLED)
    found = written(machine, before)
    for path in (
        "/var/lib/limpet/controller/page/page.crt",
        "/var/lib/limpet/cluster/services.jsonl",
    ):
        assert found[path] == "600"
    for path in ("/etc", "/run", "/var", "/var/lib"):
        assert not machine.path(path).stat().st_mode & 0o022

    # What a restore puts aside.
    machine.run("systemctl", "stop", "limpet-controller")
    limpet(machine, "controller", "restore", "/root/backup")
    aside = "/var/lib/limpet/controller/controller.db.before-restore-1"
    assert written(machine, before)[aside] == "600"
    assert differences(written(machine, before)) == {}


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

    assert_documented(machine, before, _EBPF)
    pins = {path.rpartition("/")[2] for path in written(machine, before)}
    assert {"limpet_connect4", "frontends"} <= pins
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
        lines = [f'{key} = "{value}"\n' for key, value in settings.items()]
        machine.write(CONFIG, "".join(["allow_forward = true\n", *lines]))
        machine.run("systemctl", "restart", "limpet-agent")
        for kept in ("policies-of-kubernetes.jsonl", "cluster/services.jsonl"):
            wait_until(machine.path(f"/var/lib/limpet/{kept}").exists, f"{kept} is kept")
        # What a power cut has damaged is put aside.
        machine.run("systemctl", "stop", "limpet-agent")
        policies = machine.path("/var/lib/limpet/policies-of-kubernetes.jsonl")
        policies.write_bytes(bytes(100))
        machine.run("systemctl", "start", "limpet-agent")
        wait_until(lambda: policies.with_name(f"{policies.name}.damaged").exists(), "it is aside")
        wait_until(policies.exists, "policies are kept again")


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
    assert_documented(machine, before, _NODE | _WIREGUARD)
    cloud.ask("network", "set", "--tunnel-backend", "ipsec")
    wait_until(lambda: ipsec_sessions(machine), "there is one of IPsec's")
    cloud.ask("node", "set", "n1", "--role", "relay")
    wait_until(lambda: relays(machine), "the node is a relay")

    assert_documented(machine, before, _IPSEC)


def test_what_moves_leave_has_the_owner_and_mode_that_the_document_says(
    machine: ServiceMachine,
) -> None:
    """From flannel to Limpet, to another node of the cluster, and a move refused on the way;
    with a socket that the CNI binary has to be told."""
    without_umask(machine)
    cloud = Cloud(machine).start()
    socket = "/run/limpet/another.sock"
    machine.write(CONFIG, f'socket = "{socket}"\nbridge = "cni0"\n')
    furnish_with_flannel(machine)
    before = modes(machine)

    limpet(machine, "install", "--take-over", "flannel", *joining(cloud))
    machine.run("systemctl", "stop", "limpet-agent")
    again, used = joining(cloud, "n2"), joining(cloud, "n3")
    limpet(machine, "join", "--new-identity", *again)
    machine.try_run(*LIMPET, "token", "remove", "--all", *cloud.config)  # it warns of n2
    refused = machine.try_run(
        "sh", "-c", 'umask 0; exec "$@"', "sh", *LIMPET, "join", "--new-identity", *used
    )
    assert refused.returncode == 1, refused.stdout
    before[socket] = "the test's own"

    assert_documented(machine, before, _MOVED)


def furnish_with_flannel(machine: ServiceMachine) -> None:
    """What flanneld leaves when it has ended: a configuration, its subnet, a device."""
    plugin = {"type": "flannel", "delegate": {"isDefaultGateway": True}}
    conflist = {"name": "cbr0", "cniVersion": "1.0.0", "plugins": [plugin]}
    machine.write("/etc/cni/net.d/10-flannel.conflist", json.dumps(conflist))
    machine.write("/run/flannel/subnet.env", "FLANNEL_MTU=1450\n")
    vxlan = ("type", "vxlan", "id", "1", "dstport", "8472", "local", "192.0.2.10", "nolearning")
    machine.run("ip", "link", "add", "flannel.1", *vxlan)


def ipsec_sessions(machine: ServiceMachine) -> int:
    found: int = (cluster_of(machine)["ipsec"] or {}).get("sessions", 0)
    return found


def relays(machine: ServiceMachine) -> bool:
    """Whether it serves others, in TLS too."""
    traversal = cluster_of(machine)["nat_traversal"]
    listens = (traversal["relaying_tls"] or {}).get("listen")
    return bool(listens) and bool((traversal["relaying"] or {}).get("active"))
