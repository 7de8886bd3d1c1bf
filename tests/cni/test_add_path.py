"""The way of an ADD through the agent: no process is started on it, and nothing holds the loop up.

The agent is watched by Python's own audit events, which tell of every process that it starts and
every file that it opens, and on which thread.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from limpet.lab.command import run_command
from limpet.lab.world.node import DEFAULT_CONF, LabNode
from tests.agent.test_agent import live
from tests.agent.test_agent_hardening import adopted
from tests.conftest import SEGMENTS, NodeFactory
from tests.datapath.node.test_forward import CHECKOUT, runtimes_environment
from tests.waiting import wait_until

WATCH = """
import os, re, sys, threading, time

processes = ("subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system")
namespace = re.compile(r"/proc/[0-9]+/ns/net")
log = os.open(os.environ["WATCHED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def watch(event, args):
    looked = event == "open" and isinstance(args[0], str) and namespace.fullmatch(args[0])
    if event in processes or looked:
        where = "loop" if threading.current_thread() is threading.main_thread() else "thread"
        what = "looked" if looked else "started " + repr(args[:2])
        os.write(log, (where + " " + what + chr(10)).encode())
        while looked and os.path.exists(os.environ["WATCHED"] + ".gate"):
            time.sleep(0.01)

sys.addaudithook(watch)
"""
"""What the loop's thread and the others did: a line for each process, and for each namespace that
was looked into, which takes as long as there is a gate."""


class WatchedNode:
    """A node whose agent tells what it does."""

    def __init__(self, node: LabNode, folder: Path, environment: dict[str, str]) -> None:
        self.node = node
        self._log = folder / "watched"
        self.gate = folder / "watched.gate"
        (folder / "watch").mkdir()
        (folder / "watch" / "sitecustomize.py").write_text(WATCH)
        node.agent_environment = {
            **environment,
            "PYTHONPATH": str(folder / "watch"),
            "WATCHED": str(self._log),
        }
        node.start_agent()

    def forget(self) -> None:
        """What was done up to now."""
        self._log.write_text("")

    def done(self) -> list[str]:
        return self._log.read_text().splitlines()

    def on_the_loop(self) -> list[str]:
        return [line for line in self.done() if line.startswith("loop ")]


def own_bridge(number: int, **more: Any) -> dict[str, Any]:
    """A network with a bridge and a range of its own."""
    ranges = [[{"subnet": f"10.99.{number}.0/24"}]]
    conf = {**DEFAULT_CONF, "name": f"own{number}", "bridge": f"own{number}"}
    return {**conf, "isGateway": True, "ipam": {"type": "limpet", "ranges": ranges}, **more}


def with_host_port(conf: Mapping[str, Any], port: int) -> dict[str, Any]:
    mapping = {"hostPort": port, "containerPort": 80, "protocol": "tcp"}
    return {**conf, "runtimeConfig": {"portMappings": [mapping]}}


def test_the_watch_sees_processes(tmp_path: Path, make_node: NodeFactory) -> None:
    """A test that would see nothing whatever happened would prove nothing."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    log = tmp_path / "watched"
    subprocess.run(
        ["python3", "-c", "import subprocess; subprocess.run(['true'])"],
        env={"PYTHONPATH": str(tmp_path), "WATCHED": str(log), "PATH": "/usr/bin:/bin"},
        check=True,
    )

    assert log.read_text().startswith("loop started")


def test_no_add_starts_a_process(tmp_path: Path, make_node: NodeFactory) -> None:
    """Neither the first of a network, nor one with hostPorts, nor on a bridge that has gone."""
    watched = WatchedNode(make_node(segments=SEGMENTS), tmp_path, {})
    node = watched.node
    watched.forget()

    node.pod("first").add()
    node.pod("second").add()
    node.pod("own").add(conf=own_bridge(1))
    node.pod("port").add(conf=with_host_port(DEFAULT_CONF, 8080))
    node.pod("another-port").add(conf=with_host_port(own_bridge(2), 8081))
    for pod in node.pods.values():
        pod.delete()
    node.run("ip", "link", "delete", "limpet0")
    node.pod("late").add()

    assert watched.done() == []


def test_no_add_waits_for_iptables_where_anothers_chain_drops(
    tmp_path: Path, make_node: NodeFactory
) -> None:
    """The new bridge is let through by a command that takes its time."""
    subprocess.run([CHECKOUT / "scripts" / "fetch-runtimes"], check=True)
    environment = runtimes_environment(CHECKOUT, tmp_path)
    gate, (sbin, path) = tmp_path / "iptables.gate", environment["PATH"].split(":", 1)
    slow = tmp_path / "slow"
    slow.mkdir()
    for command in ("iptables-legacy", "ip6tables-legacy"):
        script = f'while [ -e {gate} ]; do sleep 0.05; done\nexec {sbin}/{command} "$@"\n'
        (slow / command).write_text(f"#!/bin/sh\n{script}")
        (slow / command).chmod(0o755)
    node = make_node(segments=SEGMENTS, allow_forward=True)
    for command in ("iptables-legacy", "ip6tables-legacy"):
        run_command(
            *("env", *(f"{key}={value}" for key, value in environment.items())),
            *(f"{sbin}/{command}", "-P", "FORWARD", "DROP"),
            netns=node.name,
        )
    watched = WatchedNode(node, tmp_path, {**environment, "PATH": f"{slow}:{sbin}:{path}"})
    watched.forget()
    gate.touch()
    one, two = node.pod("one"), node.pod("two")
    try:
        one.add()
        two.add(conf=with_host_port(own_bridge(1), 8080))
        wait_until(watched.done, "the rules are looked at")
    finally:
        gate.unlink()

    assert watched.on_the_loop() == []
    wait_until(lambda: one.reaches(two.addresses[0].ip), "the bridges are let through")


def test_other_networks_go_on_while_namespaces_are_looked_at(
    tmp_path: Path, make_node: NodeFactory
) -> None:
    """An address that a container has which we never attached is asked for."""
    node = make_node(segments=SEGMENTS)
    adopted(node, "running", "10.244.7.8", "running\r\neth0")
    watched = WatchedNode(node, tmp_path, {})
    node.pod("first").add()
    assert "10.244.7.8" in live(node)
    watched.forget()
    watched.gate.touch()

    with ThreadPoolExecutor(1) as pool:
        asks = pool.submit(node.cni, "ADD", node.pod("asks"), args="IgnoreUnknown=1;IP=10.244.7.8")
        wait_until(lambda: watched.done() != [], "the agent looks")
        node.pod("second").add()
        node.pod("own").add(conf=own_bridge(1))
        assert not asks.done()
        watched.gate.unlink()
        refused = asks.result()

    assert "container running holds it" in refused.document["msg"]
    assert watched.on_the_loop() == []
