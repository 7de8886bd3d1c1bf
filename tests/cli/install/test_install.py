"""Installing on a machine that has other things on it, and leaving it as it was.

The machine runs systemd as its first process and has its own file system, so that the default
paths are used and every file that stays is seen.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.install.service_machine import ServiceMachine
from tests.clients.machine import Machine
from tests.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[3]
LIMPET = (sys.executable, "-m", "limpet")
SEGMENTS = ("--segment", "10.244.7.0/24", "--segment", "fd00:7::/64")
BINARY = "/usr/lib/cni/limpet"
"""Where Debian's containerd, which the machine has, looks."""
CONFLIST = "/etc/cni/net.d/10-limpet.conflist"
CONFIG = "/etc/limpet/agent.toml"
POLICIES = "/var/lib/limpet/policies.json"
SOCKET = "/run/limpet/agent.sock"


@pytest.fixture
def plain_machine() -> Iterator[Machine]:
    """One on which systemd does not run."""
    with Machine() as machine:
        yield machine


def limpet(machine: Machine, *arguments: str) -> str:
    """stdout. Raises: AssertionError unless it worked."""
    return machine.run(*LIMPET, *arguments)


def refusal(machine: Machine, *arguments: str, code: int = 1) -> tuple[str, str]:
    """stdout and stderr of a command that must fail with that exit code and one line."""
    done = machine.try_run(*LIMPET, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stdout, done.stderr


def errors(machine: Machine, *arguments: str) -> list[str]:
    """What doctor or install marks as an error."""
    said = machine.try_run(*LIMPET, *arguments).stdout
    return [line[7:] for line in said.splitlines() if line.startswith("error")]


def cni(machine: Machine, command: str, container: str, pod: str = "web-0") -> dict[str, Any]:
    """What the installed binary answers to the installed configuration."""
    conflist = json.loads(machine.path(CONFLIST).read_text())
    conf = {**conflist["plugins"][0], "name": conflist["name"], "cniVersion": "1.0.0"}
    conf["runtimeConfig"] = {
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
        "bandwidth": dict.fromkeys(
            ("ingressRate", "ingressBurst", "egressRate", "egressBurst"), 80_000_000
        ),
    }
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": f"/run/netns/{container}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(Path(BINARY).parent),
        "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}",
    }
    said = machine.run(BINARY, env=environment, stdin=json.dumps(conf))
    document: dict[str, Any] = json.loads(said) if said else {}
    return document


# The state of a machine.

_VOLATILE_SYSCTLS = ("nf_conntrack_count",)


def state_of(machine: Machine) -> dict[str, Any]:
    """Everything that must be the same before and after."""
    wait_until(
        lambda: "tentative" not in machine.run("ip", "address"), "the machine's own addresses"
    )
    return {
        "links": re.sub(r"timer +[\d.]+", "", machine.run("ip", "-details", "link")),
        "addresses": _addresses(machine),
        "routes": sorted(machine.run("ip", "route", "show", "table", "all").splitlines()),
        "routes6": sorted(machine.run("ip", "-6", "route", "show", "table", "all").splitlines()),
        "rules": machine.run("ip", "rule") + machine.run("ip", "-6", "rule"),
        "nftables": machine.run("nft", "--stateless", "list", "ruleset"),
        "iptables": machine.run("iptables", "-S") + machine.run("ip6tables", "-S"),
        "sysctls": _sysctls(machine),
        "files": _files(machine),
    }


def _addresses(machine: Machine) -> list[str]:
    """One a line, without its lifetime."""
    said = machine.run("ip", "-oneline", "address")
    return [line.split("\\")[0] for line in said.splitlines()]


def _sysctls(machine: Machine) -> list[str]:
    said = machine.try_run("grep", "--recursive", "--text", "", "/proc/sys/net").stdout
    return sorted(
        line for line in said.splitlines() if not any(name in line for name in _VOLATILE_SYSCTLS)
    )


def _files(machine: Machine) -> dict[str, tuple[int, bytes]]:
    """Mode and content by path, of every folder that any part of Limpet writes to."""
    found: dict[str, tuple[int, bytes]] = {}
    for top in ("/etc", "/opt", "/var", "/run", "/usr/lib/cni"):
        root = machine.path(top)
        for path in root.rglob("*"):
            inside = f"{top}/{path.relative_to(root)}"
            if inside.startswith(("/run/systemd/", "/run/netns/")):
                continue  # systemd's own, and the pods'
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[inside] = (path.lstat().st_mode, content)
    return found


def assert_unchanged(before: dict[str, Any], machine: Machine) -> None:
    after = state_of(machine)
    for name, value in before.items():
        assert after[name] == value, name


def furnish(machine: Machine) -> None:
    """Other people's things, some of them close to ours."""
    script = """
        ip link add br-other type bridge
        ip address add 172.30.0.1/24 dev br-other
        ip link add limonade type veth peer name limonade1
        ip link set limonade master br-other
        ip route add 203.0.113.0/24 dev uplink table 5149
        ip rule add priority 5147 from 172.30.0.0/24 lookup 5149
        nft 'table inet theirs {
            chain post {
                type nat hook postrouting priority srcnat
                ip saddr 172.30.0.0/24 masquerade
            }
        }'
        iptables -P FORWARD DROP
        iptables -A FORWARD -i br-other -j ACCEPT
        mkdir -p /etc/cni/net.d /usr/lib/cni
        echo 'another program' > /usr/lib/cni/limpet
        chmod 700 /usr/lib/cni/limpet
    """
    machine.run("sh", "-euc", script)
    other = {"cniVersion": "1.0.0", "name": "other", "type": "bridge", "bridge": "br-other"}
    machine.write("/etc/cni/net.d/87-other.conf", json.dumps(other))


# The whole life of an installation.


def test_a_node_is_as_it_was_after_install_pods_and_uninstall(machine: ServiceMachine) -> None:
    furnish(machine)
    before = state_of(machine)

    limpet(machine, "install", *SEGMENTS, "--cluster-cidr", "10.244.0.0/16", "--allow-forward")
    assert machine.run("systemctl", "is-enabled", "limpet-agent") == "enabled\n"
    with machine.namespace("c1"), machine.namespace("c2"):
        for container in ("c1", "c2"):
            cni(machine, "ADD", container, pod=container)
        machine.ping_all(["10.244.7.3", "fd00:7::3", "10.244.7.1"], netns="c1")
        # Over the FORWARD chain that drops, masqueraded.
        machine.ping_all(["192.0.2.1", "2001:db8::1"], netns="c1")
        assert errors(machine, "doctor") == []
        limpet(machine, "status")

        _, said = refusal(machine, "uninstall")
        assert "default/c1 (10.244.7.2, fd00:7::2)" in said
        for container in ("c1", "c2"):
            cni(machine, "DEL", container, pod=container)
        limpet(machine, "uninstall", "--purge")

    assert_unchanged(before, machine)


def test_records_and_settings_stay_unless_they_are_purged(machine: ServiceMachine) -> None:
    before = state_of(machine)
    limpet(machine, "install", *SEGMENTS)
    with machine.namespace("c1"):
        first = cni(machine, "ADD", "c1")["ips"]
        # What must not happen: nothing may be given the address meanwhile.
        cni(machine, "DEL", "c1")
    limpet(machine, "pod", "label", "default/web-0", "app=web")
    said = limpet(machine, "uninstall")
    assert POLICIES in said.partition("kept: ")[2]
    assert machine.path(CONFIG).exists()
    assert not machine.path(BINARY).exists()

    limpet(machine, "install")
    with machine.namespace("c2"), machine.namespace("c3"):
        cni(machine, "ADD", "c3", pod="another")
        assert cni(machine, "ADD", "c2")["ips"] == first
        limpet(machine, "uninstall", "--force", "--purge")

    assert not machine.path(POLICIES).exists(), "it would hold pods of another cluster"
    assert_unchanged(before, machine)


def test_an_agent_that_is_killed_comes_back_and_pods_do_not_notice(
    machine: ServiceMachine,
) -> None:
    limpet(machine, "install", *SEGMENTS)
    with machine.namespace("c1"):
        cni(machine, "ADD", "c1")
        pid = json.loads(limpet(machine, "status", "--output", "json"))["pid"]

        machine.run("systemctl", "kill", f"--signal={int(signal.SIGKILL)}", "limpet-agent")
        machine.ping_all(["10.244.7.1"], netns="c1")
        # The binary waits for the agent that systemd starts.
        cni(machine, "DEL", "c1")
        assert json.loads(limpet(machine, "status", "--output", "json"))["pid"] != pid


def test_installing_again_changes_nothing_and_mends_what_is_gone(machine: ServiceMachine) -> None:
    limpet(machine, "install", *SEGMENTS)
    files = _files(machine)
    with machine.namespace("c1"):
        cni(machine, "ADD", "c1")

        said = limpet(machine, "install", *SEGMENTS)
        assert "written" not in said
        assert "replaced" not in said
        machine.path(BINARY).unlink()
        assert f"{BINARY}: written" in limpet(machine, "install")
        machine.ping_all(["10.244.7.1"], netns="c1")
        cni(machine, "DEL", "c1")
    installed = (BINARY, CONFLIST, CONFIG, "/etc/systemd/system/limpet-agent.service")
    assert {path: _files(machine)[path] for path in installed} == {
        path: files[path] for path in installed
    }


def test_what_a_person_has_edited_is_left_alone(machine: ServiceMachine) -> None:
    machine.write(CONFIG, '# mine\nsegments = ["10.244.7.0/24"]\n')
    limpet(machine, "install")
    conflist = machine.path(CONFLIST)
    edited = conflist.read_text().replace('"ipMasq": true', '"ipMasq": false')
    conflist.write_text(edited)

    said = limpet(machine, "install")

    assert conflist.read_text() == edited
    assert machine.path(CONFIG).read_text().startswith("# mine")
    assert f"{CONFLIST} was changed since it was installed" in said
    limpet(machine, "uninstall", "--purge")
    assert not conflist.exists()
    assert machine.path(CONFIG).read_text().startswith("# mine")


# What stands in the way.


def occupy_lan(machine: Machine) -> None:
    machine.run("ip", "address", "add", "10.244.7.77/16", "dev", "uplink")


def occupy_route(machine: Machine) -> None:
    machine.run("ip", "route", "add", "10.244.7.128/25", "via", "192.0.2.1")


def come_first(machine: Machine) -> None:
    conf = {"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "flannel"}]}
    machine.write("/etc/cni/net.d/10-flannel.conflist", json.dumps(conf))


def give_the_same_addresses(machine: Machine) -> None:
    ipam = {"type": "host-local", "subnet": "10.244.0.0/16"}
    conf = {"cniVersion": "1.0.0", "name": "other", "type": "macvlan", "ipam": ipam}
    machine.write("/etc/cni/net.d/99-other.conf", json.dumps(conf))


def drop_forwarded(machine: Machine) -> None:
    machine.run("iptables", "-P", "FORWARD", "DROP")


def take_the_bridge_name(machine: Machine) -> None:
    machine.run("ip", "link", "add", "limpet0", "type", "veth", "peer", "name", "limpet1")


def take_the_table(machine: Machine) -> None:
    machine.run("ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.1", "table", "5148")


def take_the_rule(machine: Machine) -> None:
    machine.run("ip", "rule", "add", "priority", "5148", "lookup", "7")


def look_elsewhere(machine: Machine) -> None:
    config = machine.path("/etc/containerd/config.toml")
    config.write_text(config.read_text().replace("/etc/cni/net.d", "/srv/net.d"))


def hide_the_library(machine: Machine) -> None:
    (library,) = machine.path("/usr/lib").glob("*-linux-gnu/libnftables.so.1")
    inside = f"/usr/lib/{library.parent.name}/{library.name}"
    machine.run("mount", "--bind", "/dev/null", inside)


@pytest.mark.parametrize(
    ("occupy", "id", "words"),
    [
        (
            occupy_lan,
            "address-overlaps",
            "uplink has 10.244.7.77/16, which overlaps the segment 10.244.7.0/24",
        ),
        (occupy_route, "route-overlaps", "the route to 10.244.7.128/25 through uplink is inside"),
        (
            *(come_first, "cni-config-before-ours"),
            "10-flannel.conflist (network 'cbr0', flannel) sorts before",
        ),
        (
            give_the_same_addresses,
            "segment-given-twice",
            "gives out addresses of 10.244.7.0/24 too",
        ),
        (drop_forwarded, "forward-drops", "nftables chain ip filter FORWARD drops (policy drop)"),
        (take_the_bridge_name, "bridge-name-taken", "limpet0 is there and is a veth link"),
        (take_the_table, "table-taken", "routing table 5148 is not empty"),
        (take_the_rule, "rule-taken", "there is a rule of priority 5148"),
        (hide_the_library, "kernel-lacks", "this machine lacks nftables with NAT"),
    ],
)
def test_a_conflict_is_named_and_changes_nothing(
    plain_machine: Machine, occupy: Any, id: str, words: str
) -> None:
    occupy(plain_machine)
    # The kernel tells of a carrier up to a second after it is there.
    wait_until(lambda: " state UP " in plain_machine.run("ip", "link", "show", "uplink"))
    links = plain_machine.run("ip", "-details", "link")
    files = _files(plain_machine)

    said, line = refusal(plain_machine, "install", *SEGMENTS)

    assert words in said
    assert f"see: limpet help {id}\n" in said
    assert "nothing was changed" in line
    assert [text for text in said.splitlines() if text.startswith("error")]
    assert plain_machine.run("ip", "-details", "link") == links
    assert _files(plain_machine) == files


def test_a_runtime_that_looks_elsewhere_is_followed_and_a_wrong_option_is_a_conflict(
    plain_machine: Machine,
) -> None:
    look_elsewhere(plain_machine)

    said = limpet(plain_machine, "install", *SEGMENTS, "--dry-run")
    assert "would write /srv/net.d/10-limpet.conflist" in said
    found = errors(plain_machine, "install", *SEGMENTS, "--cni-conf-dir", "/etc/cni/net.d")
    assert len(found) == 1
    assert "reads CNI configurations from /srv/net.d, not from /etc/cni/net.d" in found[0]


def test_a_dry_run_changes_nothing(plain_machine: Machine) -> None:
    before = state_of(plain_machine)

    said = limpet(plain_machine, "install", *SEGMENTS, "--dry-run")

    assert [line for line in said.splitlines() if line.startswith("would write")] == [
        f"would write {path}"
        for path in (BINARY, CONFIG, "/etc/systemd/system/limpet-agent.service", CONFLIST)
    ]
    assert_unchanged(before, plain_machine)


def test_a_person_may_go_on_in_spite_of_a_conflict(machine: ServiceMachine) -> None:
    come_first(machine)

    limpet(machine, "install", *SEGMENTS, "--force")

    assert machine.path(CONFLIST).exists()


def test_options_that_differ_from_the_configuration_are_a_conflict(plain_machine: Machine) -> None:
    plain_machine.write(CONFIG, 'segments = ["10.244.9.0/24"]\n')

    assert errors(plain_machine, "install", "--segment", "10.244.7.0/24") == [
        f"{CONFIG} has another value of segments than the command line"
    ]


@pytest.mark.parametrize("name", ["", "../cbr0", "a b", ".hidden"])
def test_a_network_name_that_is_no_folder_name_is_one_line(
    plain_machine: Machine, name: str
) -> None:
    _, line = refusal(plain_machine, "install", *SEGMENTS, "--network-name", name, code=2)

    assert repr(name) in line


@pytest.mark.parametrize("segment", ["10.244.7.0/33", "10.244.7.1/24", "10.244.7.0/31", "pods"])
def test_a_segment_that_is_none_is_one_line(plain_machine: Machine, segment: str) -> None:
    _, line = refusal(plain_machine, "install", "--segment", segment, code=2)

    assert segment in line


def test_records_of_another_plugin_are_adopted_by_name_and_named_otherwise(
    plain_machine: Machine,
) -> None:
    plain_machine.write("/var/lib/cni/networks/cbr0/10.244.7.9", "c0ffee\r\neth0")
    plain_machine.write("/var/lib/cni/networks/cbr0/10.244.7.8_default_web-0", "")

    said = limpet(plain_machine, "install", *SEGMENTS, "--network-name", "cbr0", "--dry-run")
    assert "/var/lib/cni/networks/cbr0 are adopted: 1 held, 1 kept for pods" in said
    said = limpet(plain_machine, "install", *SEGMENTS, "--dry-run")
    assert "install with --network-name cbr0" in said


# Without systemd, and when things are half there.


def test_the_conflist_is_written_only_when_an_agent_answers(plain_machine: Machine) -> None:
    before = state_of(plain_machine)
    _, line = refusal(plain_machine, "install", *SEGMENTS)
    assert f"limpet agent --config {CONFIG}" in line
    assert not plain_machine.path(CONFLIST).exists()

    agent = plain_machine.start(*LIMPET, "agent")
    wait_until(plain_machine.path(SOCKET).exists, "the agent listens")
    limpet(plain_machine, "install", *SEGMENTS)
    assert plain_machine.path(CONFLIST).exists()

    limpet(plain_machine, "uninstall", "--purge")
    assert not agent.running
    assert_unchanged(before, plain_machine)


def test_the_conflist_is_written_only_when_the_binary_reaches_the_agent(
    plain_machine: Machine,
) -> None:
    plain_machine.write(CONFIG, 'segments = ["10.244.7.0/24"]\nsocket = "/run/other.sock"\n')
    plain_machine.write("/etc/limpet/shim.conf", "socket=/run/wrong.sock\n")
    agent = plain_machine.start(*LIMPET, "agent")
    wait_until(plain_machine.path("/run/other.sock").exists, "the agent listens")

    _, line = refusal(plain_machine, "install")
    assert f"{BINARY} does not reach the agent" in line
    assert "/etc/limpet/shim.conf" in line
    assert not plain_machine.path(CONFLIST).exists()

    plain_machine.path("/etc/limpet/shim.conf").unlink()
    limpet(plain_machine, "install")
    assert errors(plain_machine, "doctor") == []
    limpet(plain_machine, "uninstall", "--purge")
    assert not plain_machine.path("/etc/limpet/shim.conf").exists()
    assert not agent.running


def test_a_node_of_flannel_is_taken_over_with_its_bridge(plain_machine: Machine) -> None:
    plain_machine.run("ip", "link", "add", "cni0", "type", "bridge")
    plain_machine.run("ip", "address", "add", "10.244.7.1/24", "dev", "cni0")
    plain_machine.run("ip", "link", "set", "cni0", "up")
    plain_machine.run("sysctl", "-qw", "net.ipv4.ip_forward=1")  # as the bridge plugin leaves it
    plain_machine.write("/var/lib/cni/networks/cbr0/10.244.7.5_default_web-0", "")
    plain_machine.write(CONFIG, 'segments = ["10.244.7.0/24"]\nbridge = "cni0"\n')
    before = state_of(plain_machine)
    plain_machine.start(*LIMPET, "agent")
    wait_until(plain_machine.path(SOCKET).exists, "the agent listens")

    said = limpet(plain_machine, "install", "--network-name", "cbr0")
    assert "/var/lib/cni/networks/cbr0 are adopted: 0 held, 1 kept for pods" in said
    with plain_machine.namespace("c1"):
        given = cni(plain_machine, "ADD", "c1")["ips"]
        assert [address["address"] for address in given] == ["10.244.7.5/24"]
        plain_machine.ping_all(["10.244.7.1"], netns="c1")
        cni(plain_machine, "DEL", "c1")

        # As after an upgrade: the pod's kept address is on record under the network's name.
        assert f"{CONFLIST}: up to date" in limpet(plain_machine, "install")
        again = cni(plain_machine, "ADD", "c1")["ips"]
        assert [address["address"] for address in again] == ["10.244.7.5/24"]
        cni(plain_machine, "DEL", "c1")
    said = limpet(plain_machine, "uninstall")

    assert "left alone: address 10.244.7.1/24 on cni0, which Limpet did not make" in said
    after = state_of(plain_machine)
    # A bridge that has had a port is not quite what it was: it had a carrier, and an address more.
    for name in ("rules", "nftables", "sysctls"):
        assert after[name] == before[name], name
    assert not [route for route in after["routes"] if "5148" in route]
    assert "10.244.7.1/24" in plain_machine.run("ip", "address", "show", "cni0")


def test_uninstall_knows_the_pods_of_an_agent_that_is_dead(plain_machine: Machine) -> None:
    before = state_of(plain_machine)
    limpet(plain_machine, "install", *SEGMENTS, "--no-start")
    agent = plain_machine.start(*LIMPET, "agent")
    wait_until(plain_machine.path(SOCKET).exists, "the agent listens")
    with plain_machine.namespace("c1"):
        cni(plain_machine, "ADD", "c1")
        agent.kill()

        _, said = refusal(plain_machine, "uninstall")
        assert "default/web-0 (10.244.7.2, fd00:7::2)" in said
        assert plain_machine.path(CONFLIST).exists()
        (record,) = plain_machine.path("/run/limpet/attachments").glob("*.json")
        record.write_text('{"of a later version": 1}')
        _, said = refusal(plain_machine, "uninstall")
        assert f"{record.stem} (a pod's link, of which no record tells)" in said
        limpet(plain_machine, "uninstall", "--purge", "--force")
        assert "eth0" not in plain_machine.run("ip", "link", netns="c1")
    assert_unchanged(before, plain_machine)


def test_where_the_agent_is_a_pods_nothing_is_put_beside_it_nor_taken_from_it(
    plain_machine: Machine,
) -> None:
    """Its settings are in its container, where it is process 1, and the pod's init container has
    put the runtime's files in place."""
    away = "/tmp/agent.toml"
    plain_machine.write(away, 'segments = ["10.244.7.0/24"]\n')
    limpet(plain_machine, "install", "--cni-only", "--config", away)
    before = state_of(plain_machine)

    assert "the agent of this node was a pod's" in refusal(plain_machine, "install")[1]
    assert "kubectl -n limpet-system describe pod" in advice(plain_machine, "agent-silent")
    assert_unchanged(before, plain_machine)

    container = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    plain_machine.start(*container, *LIMPET, "agent", "--config", away)
    wait_until(plain_machine.path(SOCKET).exists, "the agent listens")
    assert json.loads(limpet(plain_machine, "status", "-o", "json"))["pid"] == 1
    written = [file for file in _files(plain_machine) if "/events" not in file]

    assert "runs in a container (process " in refusal(plain_machine, "install", "--force")[1]
    said = refusal(plain_machine, "uninstall")[1]
    assert "stop the agent: it runs in a container (process " in said
    assert "delete the DaemonSet" in said
    assert [file for file in _files(plain_machine) if "/events" not in file] == written
    plain_machine.path(CONFLIST).unlink()
    assert "kubectl -n limpet-system delete pod" in advice(plain_machine, "cni-config-missing")
    plain_machine.path(BINARY).write_bytes(b"of another version")
    limpet(plain_machine, "install", "--refresh")
    said = plain_machine.try_run(*LIMPET, "doctor", "--fix", "--yes").stderr
    assert "nothing that --fix mends" in said
    assert plain_machine.path(BINARY).read_bytes() == b"of another version"
    assert plain_machine.try_run(*LIMPET, "status").returncode == 0


def advice(machine: Machine, finding: str) -> str:
    """What doctor says that a person should do."""
    said = json.loads(machine.try_run(*LIMPET, "doctor", "-o", "json").stdout)
    (found,) = [str(each["advice"]) for each in said["findings"] if each["id"] == finding]
    return found


def test_uninstall_of_nothing_changes_nothing(plain_machine: Machine) -> None:
    furnish(plain_machine)
    before = state_of(plain_machine)

    assert limpet(plain_machine, "uninstall", "--purge") == "nothing of Limpet was here\n"

    assert_unchanged(before, plain_machine)


def test_uninstall_goes_on_past_what_it_cannot_remove(plain_machine: Machine) -> None:
    before = state_of(plain_machine)
    limpet(plain_machine, "install", *SEGMENTS, "--no-start")
    odd = "/run/limpet/attachments/odd"
    plain_machine.path(odd).mkdir(parents=True)

    done, said = refusal(plain_machine, "uninstall", "--purge")

    assert said == f"limpet: uninstall: remove {odd}: Is a directory\n"
    assert f"{BINARY}: removed" in done
    plain_machine.path(odd).rmdir()
    limpet(plain_machine, "uninstall", "--purge")
    assert_unchanged(before, plain_machine)


def test_a_bridge_that_others_use_too_stays_and_is_named(plain_machine: Machine) -> None:
    limpet(plain_machine, "install", *SEGMENTS, "--no-start")
    plain_machine.start(*LIMPET, "agent")
    wait_until(plain_machine.path(SOCKET).exists, "the agent listens")
    with plain_machine.namespace("c1"):
        cni(plain_machine, "ADD", "c1")
        cni(plain_machine, "DEL", "c1")
    plain_machine.run("ip", "link", "add", "vm0", "type", "veth", "peer", "name", "vm1")
    plain_machine.run("ip", "link", "set", "vm0", "master", "limpet0")

    said = limpet(plain_machine, "uninstall", "--purge")

    assert "left alone: bridge limpet0: vm0 on it is not ours" in said
    assert "limpet0" in plain_machine.run("ip", "link", "show", "vm0")


def test_settings_that_somebody_changed_after_us_stay(plain_machine: Machine) -> None:
    limpet(plain_machine, "install", *SEGMENTS, "--no-start")
    agent = plain_machine.start(*LIMPET, "agent")
    wait_until(plain_machine.path(SOCKET).exists, "the agent listens")
    with plain_machine.namespace("c1"):
        cni(plain_machine, "ADD", "c1")
        cni(plain_machine, "DEL", "c1")
    agent.kill()
    plain_machine.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=2")

    said = limpet(plain_machine, "uninstall", "--purge")

    assert "left alone: sysctl net/ipv6/conf/all/forwarding = 2" in said
    assert plain_machine.run("sysctl", "-n", "net.ipv6.conf.all.forwarding") == "2\n"
    assert plain_machine.run("sysctl", "-n", "net.ipv4.ip_forward") == "0\n"


def test_files_that_a_power_cut_has_damaged_do_not_keep_pods_from_their_network(
    plain_machine: Machine,
) -> None:
    """As the agent's pod does it at each start, which waits for that."""
    plain_machine.write(CONFIG, 'segments = ["10.244.7.0/24"]\n')
    limpet(plain_machine, "install", "--cni-only")
    whole = plain_machine.path(CONFLIST).read_bytes()
    record = plain_machine.path("/var/lib/limpet/installed.json")
    record.write_bytes(bytes(100))
    found = plain_machine.try_run(*LIMPET, "doctor", "--output", "json").stdout
    assert "installation-damaged" in [each["id"] for each in json.loads(found)["findings"]]

    limpet(plain_machine, "install", "--cni-only")

    assert record.with_name("installed.json.damaged").read_bytes() == bytes(100)
    assert plain_machine.path(CONFLIST).read_bytes() == whole
    assert json.loads(record.read_text())["files"]
    plain_machine.path(CONFLIST).write_bytes(bytes(400))
    limpet(plain_machine, "install", "--cni-only")
    assert plain_machine.path(CONFLIST).read_bytes() == whole


# Doctor.


def test_doctor_names_what_is_missing_on_a_machine_without_limpet(plain_machine: Machine) -> None:
    found = errors(plain_machine, "doctor")

    assert [words for words in found if "CNI binary" in words]
    assert [words for words in found if "names Limpet" in words]
    assert [words for words in found if "agent does not answer" in words]


def test_doctor_finds_what_was_damaged_and_nothing_before(machine: ServiceMachine) -> None:
    limpet(machine, "install", *SEGMENTS)
    assert errors(machine, "doctor") == []

    machine.run("systemctl", "stop", "limpet-agent")
    machine.path(BINARY).unlink()
    machine.run("cp", "/bin/sleep", "/tmp/NetworkManager")
    machine.start("/tmp/NetworkManager", "1000")
    assert len(errors(machine, "doctor")) == 2
    limpet(machine, "doctor", "--fix", "--yes")
    assert errors(machine, "doctor") == []
    written = machine.path("/etc/NetworkManager/conf.d/limpet.conf")
    assert written.read_text().startswith("[keyfile]\nunmanaged-devices=interface-name:lim*;")

    machine.path(BINARY).chmod(0o644)
    come_first(machine)
    drop_forwarded(machine)
    found = json.loads(machine.try_run(*LIMPET, "doctor", "--output", "json").stdout)["findings"]

    wrong = [finding for finding in found if finding["level"] == "error"]
    assert len(wrong) == 3
    for finding, words in zip(
        wrong, ("not executable", "10-flannel.conflist", "FORWARD drops"), strict=True
    ):
        assert words in finding["what"]
        assert finding["why"]
        assert finding["advice"]

    limpet(machine, "uninstall")
    assert not written.exists()


@pytest.mark.parametrize(
    "command", ["install", "uninstall", "doctor", "lab demo"], ids=lambda name: name.split()[0]
)
def test_only_root_may_change_the_node(plain_machine: Machine, command: str) -> None:
    done = plain_machine.try_run(
        "setpriv", "--reuid=65534", "--clear-groups", "--", *LIMPET, *command.split()
    )

    assert done.returncode == 1
    assert "only root" in done.stderr
    assert done.stderr.count("\n") == 1
