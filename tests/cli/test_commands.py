"""A person's commands against a running agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from limpet.agent.settings import load_settings
from limpet.cli.doctor.pods.agent import host_port_findings
from limpet.cli.doctor.pods.attached import read_pods
from limpet.cli.main import main
from limpet.lab.world.node import DEFAULT_CONF, LabNode
from tests.answers import check_answer
from tests.beds.namespaces import NetnsFactory
from tests.conftest import NodeFactory


class Shell:
    """Runs `limpet` for one node and keeps what it said."""

    def __init__(self, node: LabNode, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = str(node.config_path)
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        self._capsys.readouterr()
        exit_code = main([*arguments, "--config", self._config])
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.err
        return exit_code

    def json(self, *arguments: str) -> dict[str, Any]:
        """The result, whatever the exit code."""
        self(*arguments, "--output", "json")
        document: dict[str, Any] = json.loads(self.out)
        check_answer(arguments, document)
        return document


@pytest.fixture
def limpet(node: LabNode, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(node, capsys)


def states(limpet: Shell) -> dict[str, str]:
    return {r["address"]: r["state"] for r in limpet.json("ipam", "list")["records"]}


def test_status_says_how_full_the_node_is(node: LabNode, limpet: Shell) -> None:
    node.pod("web-0").add()

    assert limpet("status") == 0
    lines = [line.split() for line in limpet.out.splitlines()]
    assert ["10.244.7.0/24", "253", "1", "0", "0", "252"] in lines
    assert ["limpet", "2", "0"] in lines
    assert limpet.json("status")["attachments"] == 1


def test_status_reads_as_a_person_writes(node: LabNode, limpet: Shell) -> None:
    node.pod("web-0").add()

    limpet("status")

    lines = [" ".join(line.split()) for line in limpet.out.splitlines()]
    assert "1 pod attached, bridge limpet0" in lines
    assert "fd00:7::/64 /64 1 0 0 never full" in lines
    assert "e+" not in limpet.out


def test_a_node_that_is_full_says_so_and_is_exit_code_1(
    make_node: NodeFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    node = make_node(segments=["10.246.1.0/28", "fd46:1::/64"])
    node.start_agent()
    limpet = Shell(node, capsys)
    pods = [node.pod(f"web-{number}") for number in range(13)]
    for pod in pods[:-1]:
        pod.add()

    assert limpet("status") == 0
    assert "ready, nearly full: 1 of 13 IPv4 addresses of 10.246.1.0/28 are left" in limpet.out
    pods[-1].add()
    assert limpet("status") == 1
    words = "full, no further pod can be started: pods have all 13 IPv4 addresses of 10.246.1.0/28"
    assert words in limpet.out.splitlines()
    assert limpet.json("status")["room"] == "full"
    assert limpet("status", "--wait", "--timeout", "0") == 1
    assert "not ready within 0 s: full, no further pod" in limpet.err

    pods[0].delete()  # its address is kept for it, and given where nothing else is left
    assert limpet("status", "--wait", "--timeout", "0") == 0


def test_status_waits_until_pods_can_be_started(
    make_node: NodeFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    node = make_node(segments=["10.246.2.0/29"])
    node.start_agent()
    node.stop_agent()
    limpet = Shell(node, capsys)
    starting = threading.Thread(target=node.start_agent)
    starting.start()
    try:
        assert limpet("status", "--wait") == 0
    finally:
        starting.join()

    assert "ready" in limpet.out.splitlines()


def test_watching_tells_again_and_again_also_while_the_agent_is_away(node: LabNode) -> None:
    words = ("status", "--watch", "--interval", "0.1", "--config", str(node.config_path))
    with subprocess.Popen(
        [sys.executable, "-m", "limpet", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        lines = iter(watching.stdout.readline, "")
        try:
            for words_of_it in ("ready\n", "ready\n"):
                next(line for line in lines if line == words_of_it)
            node.stop_agent()
            next(line for line in lines if "ask the agent" in line)
            node.start_agent()
            for words_of_it in ("ready\n", "ready\n"):
                next(line for line in lines if line == words_of_it)
        finally:
            watching.send_signal(signal.SIGINT)
            watching.stdout.read()
    assert watching.returncode == 0


def test_who_is_not_root_is_told_so(node: LabNode) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        config = Path(folder, "agent.toml")
        config.write_bytes(node.config_path.read_bytes())

        asked = _as_nobody("status", "--config", str(config))
        config.chmod(0o600)
        unread = _as_nobody("status", "--config", str(config))

    assert "permission denied (only root may ask: sudo)" in asked
    assert "is it running" not in asked
    assert unread == (
        f"limpet: read configuration {config}: permission denied (only root may read it: sudo)\n"
    )


def _as_nobody(*words: str) -> str:
    """What it says on stderr."""
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    command = [*nobody, sys.executable, "-m", "limpet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_node_of_its_own_tells_the_ways_between_its_pods(node: LabNode, limpet: Shell) -> None:
    one, other = node.pod("web-0"), node.pod("web-1")
    one.add()
    other.add()

    assert limpet("path", "default/web-0", "web-1") == 0
    assert "default/web-0 (10.244.7.2) -> default/web-1 (10.244.7.3)\n" in limpet.out
    assert "  there: on this node, over limpet0, MTU 1450\n" in limpet.out
    assert limpet.out.count("reachable, as far as this node knows") == 2
    assert limpet("path", "web-0", "192.0.2.9") == 1
    assert "in no cluster: the node's own routes lead there" in limpet.out
    assert "not known here" in limpet.out
    assert limpet("path", "web-0", "crane-1") == 1
    assert "crane-1 is neither an address nor a pod of this node" in limpet.err


@pytest.mark.parametrize("command", [("service", "list"), ("peer", "list")])
def test_a_node_in_no_cluster_says_so_when_asked_for_others(
    limpet: Shell, command: tuple[str, ...]
) -> None:
    assert limpet(*command) == 1
    assert limpet.out == ""
    assert "this node has joined no cluster" in limpet.err
    assert "limpet join" in limpet.err


def test_status_of_an_agent_without_segments_is_exit_code_1(
    make_node: NodeFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    node = make_node()
    node.start_agent()
    limpet = Shell(node, capsys)

    assert limpet("status") == 1
    assert "no segments" in limpet.out


def test_status_without_an_agent_is_one_line(node: LabNode, limpet: Shell) -> None:
    node.stop_agent()

    assert limpet("status") == 1
    assert limpet.out == ""
    assert limpet.err.count("\n") == 1
    assert str(node.socket) in limpet.err


def test_list_names_the_pod_of_each_address(node: LabNode, limpet: Shell) -> None:
    node.pod("web-0").add()

    assert limpet("ipam", "list", "-o", "wide") == 0
    rows = [line.split() for line in limpet.out.splitlines()[1:]]
    assert ["limpet", "10.244.7.2", "live", "default", "web-0", "eth0", "web-0"] in rows
    with_agent = limpet.json("ipam", "list")
    node.stop_agent()
    assert limpet.json("ipam", "list") == with_agent


def test_a_leak_is_found_and_repaired_and_its_binding_stays(
    make_node: NodeFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of its own: an address that some namespace of the machine has, another test's too, is no leak.
    node = make_node(segments=["10.245.77.0/24", "fd77:7::/64"])
    node.start_agent()
    limpet = Shell(node, capsys)
    # Under another main plugin: the agent does not notice by itself that an interface goes.
    pod = node.pod("web-0")
    pod.add(conf={**DEFAULT_CONF, "type": "macvlan"})
    assert limpet("ipam", "check") == 0
    # As after a crash of the runtime: the sandbox is gone, and nobody says DEL.
    pod.remove()

    found = limpet.json("ipam", "check")["leaks"]
    assert {leak["address"] for leak in found} == {"10.245.77.2", "fd77:7::2"}
    assert limpet("ipam", "check") == 1
    assert "10.245.77.2" in limpet.out

    assert limpet("ipam", "repair") == 0
    assert "10.245.77.2" in limpet.out
    assert set(states(limpet).values()) == {"bound"}
    assert limpet("ipam", "check") == 0
    assert limpet("ipam", "repair") == 0
    assert limpet.out == ""


def test_a_namespace_that_has_the_number_of_one_that_is_gone_hides_no_leak(
    make_node: NodeFactory, make_netns: NetnsFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    node = make_node(segments=["10.245.78.0/24"])
    node.start_agent()
    limpet = Shell(node, capsys)
    pod = node.pod("web-0")
    pod.add(conf={**DEFAULT_CONF, "type": "macvlan"})
    number = os.stat(pod.netns_path).st_ino
    pod.remove()

    # The kernel gives the lowest number that is free, once it has taken the old one apart; another
    # test's namespace may get it as well.
    for _ in range(30):
        if os.stat(make_netns().path).st_ino == number:
            break

    assert [leak["address"] for leak in limpet.json("ipam", "check")["leaks"]] == ["10.245.78.2"]
    assert limpet("ipam", "repair") == 0
    assert "10.245.78.2" in limpet.out


def test_check_without_an_agent_says_what_it_cannot_tell_and_is_exit_code_1(
    node: LabNode, limpet: Shell
) -> None:
    node.pod("web-0").add()
    node.stop_agent()

    assert limpet("ipam", "check") == 1
    assert limpet.out == ""
    assert "the records are sound; whether each address" in limpet.err
    assert "only a running agent can tell" in limpet.err
    assert "is in use, and" not in limpet.err
    assert limpet.json("ipam", "check") == {"leaks": None, "findings": []}

    stray = node.data_dir / "limpet" / "10.244.7.300"
    stray.write_text("web-0\n")
    assert limpet("ipam", "check") == 1
    assert limpet.out.startswith(f"{stray}: is no file of an address store")
    assert "the records have the damage above; whether" in limpet.err


def test_doctor_names_the_pods_that_ask_for_one_host_port(node: LabNode) -> None:
    mapping = {"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}
    conf = {**DEFAULT_CONF, "runtimeConfig": {"portMappings": [mapping]}}
    for name in ("web-0", "web-1"):
        node.pod(name).add(conf=conf)
    settings = load_settings(node.config_path)

    (found,) = host_port_findings(read_pods(settings))
    assert "TCP port 18080" in found.what
    assert "(default/web-0, default/web-1): default/web-1" in found.what

    node.pods["web-1"].delete()
    assert list(host_port_findings(read_pods(settings))) == []


def test_release_gives_up_what_is_kept_for_a_pod(node: LabNode, limpet: Shell) -> None:
    for name in ("web-0", "web-1"):
        pod = node.pod(name)
        pod.add()
        pod.delete()
    kept = states(limpet)
    assert list(kept.values()).count("bound") == 4

    assert limpet("ipam", "release", "default/web-0") == 0
    assert limpet.out.splitlines() == ["10.244.7.2 released", "fd00:7::2 released"]
    assert limpet.json("ipam", "release", "10.244.7.3") == {"released": ["10.244.7.3"]}
    assert [address for address, state in states(limpet).items() if state == "bound"] == [
        "fd00:7::3"
    ]
    assert limpet("ipam", "release", "default/web-0") == 1
    assert limpet.err.count("\n") == 1


def test_release_knows_a_pod_that_another_program_has_written_as_one_word(
    node: LabNode, limpet: Shell
) -> None:
    """`limpet ipam list` showed it, and it was the pod's when it came back."""
    node.pod("web-0").add()
    node.stop_agent()
    for name in ("10.244.7.9-default-db-0", "10.244.7.10-default-db-01", "10.244.7.11_default_db"):
        (node.data_dir / "limpet" / name).touch()
    node.start_agent()

    assert limpet("ipam", "release", "default/db-0") == 0
    assert limpet.out.splitlines() == ["10.244.7.9 released"]
    bound = [address for address, state in states(limpet).items() if state == "bound"]
    assert bound == ["10.244.7.10", "10.244.7.11"]


def test_an_address_in_use_is_released_only_by_force(node: LabNode, limpet: Shell) -> None:
    node.pod("web-0").add()

    assert limpet("ipam", "release", "10.244.7.2") == 1
    assert "web-0" in limpet.err
    assert states(limpet)["10.244.7.2"] == "live"
    assert limpet("ipam", "release", "10.244.7.2", "--force") == 0
    assert states(limpet).get("10.244.7.2") != "live"


def test_of_several_networks_one_has_to_be_named(node: LabNode, limpet: Shell) -> None:
    ipam = {"type": "host-local", "subnet": "10.9.0.0/24"}
    node.pod("web-0").add()
    node.pod("db-0").add(conf={**DEFAULT_CONF, "name": "storage", "bridge": "br9", "ipam": ipam})

    records = limpet.json("ipam", "list", "--network", "storage")["records"]
    assert [record["address"] for record in records] == ["10.9.0.2"]
    assert limpet("ipam", "release", "default/db-0", "--force") == 1
    assert "limpet, storage" in limpet.err
    assert limpet("ipam", "release", "default/db-0", "--network", "storage", "--force") == 0
    assert limpet("ipam", "release", "default/db-0", "--network", "nowhere") == 1
    assert "nowhere" in limpet.err
