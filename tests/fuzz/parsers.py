"""Which functions of Limpet read what others give, found in its source, and which of them targets
enter. A new one that no target enters has to become one, or be named here with the reason."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.samples import samples_of
from tests.fuzz.target import Target

SOURCE = Path(__file__).parents[2] / "src" / "limpet"
_BY_NAME = re.compile(r"(parse|decode|unpack)(_\w+)?|read_\w+")
_DECODERS = re.compile(
    r"(json|tomllib|pickle|yaml)\.loads?|(msgspec\.(json|msgpack)\.)?decode(_plain)?_json|"
    r"msgspec\.(json|msgpack)\.decode|convert|\w+\.(unpack|unpack_from|iter_unpack)|parse_toml"
)

_KERNEL = "asks the kernel, which is no stranger; what it says in messages goes to codecs"
_OWN = "of what this program, or the other end of the same Limpet, has made itself"
_FILE = "opens a file, and what it holds goes to a target"
_LIVE = "of a running process: tests/fuzz/live throws bytes at it"
_RECORDS = "the controller's own database, which only it writes; a foreign file is a target"
EXEMPT = {
    "limpet.lab": "the lab reads what its own programs say",
    # The kernel
    "limpet.linux.packets.echo": _KERNEL,
    "limpet.cli.doctor.firewall.trial.read_rules": _KERNEL,
    "limpet.cli.install.flannel.devices.read_devices": _KERNEL,
    "limpet.cluster.datagrams.udp_sockets": _KERNEL,
    "limpet.controller.reach.read_links": _KERNEL,
    "limpet.datapath.node": _KERNEL,
    "limpet.datapath.own_node": _KERNEL,
    "limpet.datapath.services.kube_proxy._legacy_rules": _KERNEL,
    "limpet.base.process.programs.peer_pid": _KERNEL,
    "limpet.linux.bpf": _KERNEL,
    "limpet.linux.conntrack._forget_stale": _KERNEL,
    "limpet.linux.packets.datagram_batches": _KERNEL,
    "limpet.linux.file_changes": _KERNEL,
    "limpet.linux.netlink.socket": _KERNEL,
    "limpet.linux.nftables.Nftables": _KERNEL,
    "limpet.linux.set_elements": _KERNEL,
    "limpet.linux.socket_diag": _KERNEL,
    "limpet.linux.sysctl": _KERNEL,
    "limpet.linux.underlay": _KERNEL,
    "limpet.timeline.recorder.read_boot": _KERNEL,
    # Ourselves
    "limpet.agent.answers": _OWN,
    "limpet.agent.client": _OWN,
    "limpet.cloud.join.keep_waiting_pods": _OWN,
    "limpet.cli.commands": "what a person types, who is told what is wrong with it",
    "limpet.cli.doctor.pods.attached.read_pods": _OWN,
    "limpet.cli.install.files._is_limpets": _OWN,
    "limpet.cli.install.shim_probe": _OWN,
    "limpet.cli.names": _OWN,
    "limpet.cli.topics.pages.read_pages": _OWN,
    "limpet.cloud.second_road.presence_object._object": _OWN,
    "limpet.nat.upnp_apart.map_apart": _OWN,
    "limpet.controller.admin.client": _OWN,
    "limpet.controller.store.kubernetes.items.operations": _OWN,
    "limpet.datapath.services.elements._jenkins_hash": _OWN,
    "limpet.datapath.tunnel.ipsec.daemon": _OWN,
    "limpet.datapath.tunnel.program": _OWN,
    "limpet.datapath.tunnel.wireguard.process": _OWN,
    "limpet.dns.handover.ready": _OWN,
    "limpet.timeline.answer.asked_of": _OWN,
    "limpet.web.live.source._typed": _OWN,
    # The controller's records
    "limpet.controller.api.feed": _RECORDS,
    "limpet.controller.backup": _RECORDS,
    "limpet.controller.orchestrator.pods.read_report": _RECORDS,
    "limpet.controller.registry": _RECORDS,
    "limpet.controller.replica": _RECORDS,
    "limpet.controller.state.reports": _RECORDS,
    # What opens and hands on
    "limpet.cloud.second_road.api_server.ApiServerSource._hear_status": _FILE,
    "limpet.base.disk.read_kept": _FILE,
    "limpet.cni.resolv_conf.read_dns": _FILE,
    "limpet.kubernetes.reviews.create_token": "one field of an answer, decoded by its type",
    # Processes
    "limpet.dns.control.Control": _LIVE,
}
"""Modules, or functions of one, and why no target enters them."""


@cache
def parsers() -> frozenset[str]:
    """Dotted names of functions that by their name, or by what they call, read bytes or text."""
    return frozenset(name for path in SOURCE.rglob("*.py") for name in _in_module(path))


def _in_module(path: Path) -> Iterator[str]:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    for name, function in _functions(ast.parse(path.read_text(encoding="utf-8")), ""):
        if _BY_NAME.fullmatch(function.name) or any(map(_decodes, ast.walk(function))):
            yield f"{module}.{name}"


def _functions(
    node: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Of modules and classes; one inside of another belongs to that."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef):
            yield from _functions(each, f"{prefix}{each.name}.")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not _only_says(each):
            yield prefix + each.name, each


def _only_says(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Of an overload or a protocol: it has no body."""
    *_, last = function.body
    return isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)


def _decodes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return False
    return bool(_DECODERS.fullmatch(ast.unparse(node.func)))


def is_exempt(name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in EXEMPT)


def entered(targets: Iterable[Target]) -> set[str]:
    """Dotted names of all functions of Limpet that the targets' samples enter."""
    codes: set[Any] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    for target in targets:
        for data in samples_of(target):
            sys.setprofile(note)
            try:
                target.attempt(data)
            finally:
                sys.setprofile(None)
    found = set()
    for code in codes:
        path = Path(code.co_filename)
        if path.is_relative_to(SOURCE):
            module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
            found.add(f"{module}.{code.co_qualname}")
    return found
