"""What network policies cost: CPU for a connection's first packet, CPU and memory to program them.

A pod sends through its node; at each look what is in force is another: no policy, many policies, a
policy with many ipBlocks; and, for comparison, as many rules one after the other, which a packet
walks through. As kinvolk's egress-filtering-benchmark has it, the address that is allowed is the
last one. What the receiver gets it drops at once.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any

from bench.figures import Figure, Target
from bench.netns import Netns
from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.ruleset import NOTHING, LocalPort, plan_tables
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Selector
from limpet.policies.policy import Direction, IpBlock, Key, Pod, Policy, PortSpan, Rule, World

if TYPE_CHECKING:  # measures know this module
    from bench.measures import Bed

POD, TARGET = "10.1.0.2", "10.2.0.2"
POLICIES = (0, 10, 1_000)
BLOCKS = (10, 1_000, 100_000, 1_000_000)
RULES = (10, 1_000)
FLOWS = 4_000
"""New connections of one look: ports of the target from 1 on."""
FLAT = 1.05
_FIRST = int(IPv4Address("32.0.0.0"))


def policies(bed: Bed, rounds: int) -> list[Figure]:
    with ExitStack() as undo:
        none = _Wires("none", undo)
        many = {count: _Wires(f"p{count}", undo, _many_policies(count)) for count in POLICIES[1:]}
        blocks = {count: _Wires(f"b{count}", undo, _many_blocks(count)) for count in BLOCKS}
        lines = {count: _Wires(f"r{count}", undo, rules=count) for count in RULES}
        found: dict[_Wires, list[float]] = {}
        for _ in range(rounds):
            for wires in (none, *many.values(), *blocks.values(), *lines.values()):
                found.setdefault(wires, []).append(wires.cost_us())
    figures = [Figure("policies-none", "a new connection, no policy", "CPU us", found[none])]
    figures += [
        Figure(
            f"policies-{count}",
            f"a new connection, {count} policies (reference: none)",
            "CPU us",
            found[wires],
            found[none],
        )
        for count, wires in many.items()
    ]
    figures += [
        Figure(
            f"policies-blocks-{count}",
            f"a new connection, {count} ipBlocks (reference: {BLOCKS[0]})",
            "CPU us",
            found[wires],
            found[blocks[BLOCKS[0]]],
            Target(FLAT),
        )
        for count, wires in blocks.items()
        if count != BLOCKS[0]
    ]
    figures += [
        Figure(
            f"policies-rules-{count}",
            f"a new connection, {count} ipBlocks (reference: {count} rules in a row)",
            "CPU us",
            found[blocks[count]],
            found[wires],
        )
        for count, wires in lines.items()
    ]
    for count, wires in blocks.items():
        took = wires.took
        figures += [
            Figure(
                f"policies-program-{count}",
                f"{count} ipBlocks to the kernel",
                "CPU ms",
                [took["cpu_ms"]],
            ),
            Figure(
                f"policies-memory-{count}",
                f"{count} ipBlocks to the kernel, most memory meanwhile",
                "MB",
                [took["mb"]],
            ),
        ]
    return figures


class _Wires:
    """pod ── node ── target, with something in force on the node."""

    def __init__(
        self,
        name: str,
        undo: ExitStack,
        world: Callable[[], World] | None = None,
        *,
        rules: int = 0,
    ) -> None:
        self.took: dict[str, float] = {}
        self._pod, self._node, target = (_netns(f"{name}-{end}", undo) for end in "pnt")
        for end, other, network in ((self._pod, "pod0", 1), (target, "out0", 2)):
            _ip(self._node, f"link add {other} type veth peer name eth0 netns {end.name}")
            _ip(self._node, f"address add 10.{network}.0.1/24 dev {other}", f"link set {other} up")
            _ip(end, f"address add 10.{network}.0.2/24 dev eth0", "link set eth0 up")
            _ip(end, f"route add default via 10.{network}.0.1")
        _set(self._node, "net/ipv4/ip_forward", "1")
        _nft(target, "table ip t { chain c { type filter hook prerouting priority raw; drop; }; }")
        if world is not None:
            self.took = _programmed(self._node, world)
        elif rules:
            _nft(self._node, _in_a_row(rules))
        else:  # connections are tracked there, too, as for masquerade and Services
            _nft(
                self._node,
                f"table inet t {{ chain c {{ {_HOOK} ct state established accept; }}; }}",
            )
        _set(self._node, "net/netfilter/nf_conntrack_udp_timeout", "1")
        with self._pod.inside():
            self._socket = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._socket.sendto(b"", (TARGET, FLOWS + 1))  # neighbours are found

    def cost_us(self) -> float:
        """CPU time of a packet of a new connection: the sender's, which carries it to its end."""
        began_ns = time.process_time_ns()
        for port in range(1, FLOWS + 1):
            self._socket.sendto(b"", (TARGET, port))
        spent_ns = time.process_time_ns() - began_ns
        time.sleep(1.2)  # the node forgets the connections
        return spent_ns / FLOWS / 1e3


_HOOK = "type filter hook forward priority filter;"


def _in_a_row(count: int) -> str:
    addresses = (*_addresses(count - 1), IPv4Address(TARGET))
    rules = "; ".join(f"ip daddr {each} accept" for each in addresses)
    return f"table inet t {{ chain c {{ {_HOOK} ct state established accept; {rules}; drop; }}; }}"


def _addresses(count: int) -> list[IPv4Address]:
    """No two of them touch."""
    return [IPv4Address(_FIRST + 2 * number) for number in range(count)]


def _many_blocks(count: int) -> Callable[[], World]:
    def make() -> World:
        blocks = [IpBlock(ip_network(each)) for each in (*_addresses(count - 1), _TARGET)]
        return _world([Policy(Key("a", "p"), Selector(), _EGRESS, (), (Rule(tuple(blocks)),))])

    return make


def _many_policies(count: int) -> Callable[[], World]:
    """Each allows an address at a port; the last one all ports of the target."""

    def make() -> World:
        found = []
        for number, address in enumerate((*_addresses(count - 1), _TARGET)):
            span = PortSpan("udp", number + 1, number + 1)
            ports = () if address == _TARGET else (span,)
            rule = Rule((IpBlock(ip_network(address)),), ports)
            found.append(Policy(Key("a", f"p{number}"), Selector(), _EGRESS, (), (rule,)))
        return _world(found)

    return make


_TARGET = IPv4Address(TARGET)
_EGRESS: frozenset[Direction] = frozenset({"egress"})
_LIMITED = Pod(Key("a", "pod"), (ip_address(POD),), {})


def _world(policies: Sequence[Policy]) -> World:
    return World({each.key: each for each in policies}, {}, {_LIMITED.key: _LIMITED})


def _programmed(node: Netns, make: Callable[[], World]) -> dict[str, float]:
    """By a process of its own, whose memory is counted too."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with node.inside():
                os.write(writer, json.dumps(_program(make())).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as told:
        text = told.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError("policies could not be programmed")
    found: dict[str, float] = json.loads(text)
    return found


def _program(world: World) -> dict[str, float]:
    began_ns = time.process_time_ns()
    port = LocalPort(_LIMITED.key, "", "", "", _LIMITED.addresses)
    kernel = PolicyKernel()
    kernel.change(NOTHING, plan_tables(compile_sides(world, [_LIMITED]), [port]))
    cpu_ms = (time.process_time_ns() - began_ns) / 1e6
    if kernel.put_whole:
        raise RuntimeError("the difference was refused")
    most_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"cpu_ms": cpu_ms, "mb": most_kib * 1024 / 1e6}


def _netns(name: str, undo: ExitStack) -> Netns:
    made = Netns(name)
    undo.callback(made.close)
    return made


def _ip(netns: Netns, *commands: str) -> None:
    _run(netns, ["ip", "-b", "-"], "\n".join(commands))


def _nft(netns: Netns, text: str) -> None:
    _run(netns, ["nft", "-f", "-"], text)


def _run(netns: Netns, command: list[str], text: str) -> Any:
    with netns.inside():
        subprocess.run(command, input=text, text=True, check=True, capture_output=True)


def _set(netns: Netns, path: str, value: str) -> None:
    with netns.inside(), open(f"/proc/sys/{path}", "w", encoding="ascii") as file:
        file.write(value)
