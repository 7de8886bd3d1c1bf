"""What pages take for granted of a machine that they type on: `node=NAME` in a block's marker."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import BINARY, CONFLIST


class Typed(Protocol):
    """stdout of what is typed. Raises: AssertionError unless it worked."""

    def __call__(self, text: str, *, at: str = "", pasted: str = "") -> str: ...


def nothing(machine: ServiceMachine, typed: Typed) -> None:
    """The machine is fresh, and another one than that of the page's other blocks."""


def joined(machine: ServiceMachine, typed: Typed, *, name: str) -> None:
    """A node of the cluster whose controller is next door."""
    token = typed("limpet token create", at="cloud")
    words = f"limpet install --controller 203.0.113.10:7470 --token-file - --name {name}"
    typed(words, pasted=token)
    typed("limpet status --wait --timeout 60")


def with_shells(machine: ServiceMachine, typed: Typed) -> None:
    """Where packages of the shells have made these folders."""
    typed("mkdir -p /etc/bash_completion.d /usr/local/share/zsh/site-functions")
    typed("mkdir -p /etc/fish/completions")


def with_a_shop(machine: ServiceMachine, typed: Typed) -> None:
    """A node on its own with two pods of a namespace `shop`."""
    typed("limpet install --segment 10.244.7.0/24 --segment fd00:7::/64")
    for pod in ("web", "client"):
        typed(f"ip netns add {pod}")
        _attach(machine, pod)


def _attach(machine: ServiceMachine, pod: str) -> None:
    """As a runtime does by the installed configuration."""
    conflist = json.loads(machine.path(CONFLIST).read_text())
    conf = {**conflist["plugins"][0], "name": conflist["name"], "cniVersion": "1.0.0"}
    environment = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": pod,
        "CNI_NETNS": f"/run/netns/{pod}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": BINARY.rpartition("/")[0],
        "CNI_ARGS": f"K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}",
    }
    machine.run(BINARY, env=environment, stdin=json.dumps(conf))


PREPARED: dict[str, Callable[[ServiceMachine, Typed], None]] = {
    "controller": nothing,
    "crane-1": partial(joined, name="crane-1"),
    "hub": partial(joined, name="hub"),
    "shells": with_shells,
    "shop": with_a_shop,
}
