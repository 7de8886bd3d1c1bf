"""Ways to let a pod send to some prefixes and nowhere else: each puts that in force on a node.

iptables walks through rules; ipset, nftables and eBPF look an address up. All but the last two take
what belongs to a connection that stands without another look.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_address
from pathlib import Path

from bench.nodes.netns import Netns
from bench.nodes.resident import settled_kernel_mb
from bench.policies.egress.wires import POD, Wires, Within, run
from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.ruleset import NOTHING, LocalPort, plan_tables
from limpet.linux.bpf.library import Bpf
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Selector
from limpet.policies.policy import (
    Direction,
    IpBlock,
    Key,
    Policy,
    PolicyPod,
    PolicyRule,
    PolicyWorld,
    PortSpan,
)

Blocks = Sequence[IPv4Network]
_ROOT = Path(__file__).resolve().parents[3]
_SOURCE = Path(__file__).with_name("lpm.bpf.c")
_EGRESS: frozenset[Direction] = frozenset({"egress"})
_LIMITED = PolicyPod(Key("a", "pod"), (ip_address(POD),), {})
_PREFIX = struct.Struct("=I4s")


@dataclass(frozen=True, slots=True)
class Took:
    """What it took to program it: processor time, and the most memory of the process; and the
    kernel's memory for as long as it is in force."""

    cpu_ms: float
    megabytes: float
    kernel_megabytes: float


class Ways:
    """What they need that has to be taken away again."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo
        self._folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="lbn-ways-")))
        self._tools = _tools()
        self._object = _built(self._folder)
        self._mounted: dict[str, Path] = {}

    # Each takes the name of the wires and what is allowed; the wires have it in force.

    def iptables(self, name: str, blocks: Blocks) -> tuple[Wires, Took]:
        wires = Wires(name, self._undo)
        rules = "".join(f"-A FORWARD -d {each} -j ACCEPT\n" for each in blocks)
        return wires, _programmed(lambda: self._restore(wires.node, rules))

    def ipset(self, name: str, blocks: Blocks) -> tuple[Wires, Took]:
        wires = Wires(name, self._undo)

        def program() -> None:
            lines = [f"create allowed hash:net maxelem {len(blocks) + 1}"]
            lines += [f"add allowed {each}" for each in blocks]
            self._tool(wires.node, ["ipset", "restore"], "\n".join(lines) + "\n")
            self._restore(wires.node, "-A FORWARD -m set --match-set allowed dst -j ACCEPT\n")

        return wires, _programmed(program)

    def nftables(self, name: str, blocks: Blocks) -> tuple[Wires, Took]:
        """Ours: a policy with these ipBlocks."""
        peers = tuple(IpBlock(each) for each in blocks)
        policy = Policy(Key("a", "p"), Selector(), _EGRESS, (), (PolicyRule(peers),))
        return self._policies(name, [policy])

    def many_policies(self, name: str, blocks: Blocks) -> tuple[Wires, Took]:
        """Ours: as many policies as blocks, each of which allows one at a port of its own; the last
        one at all ports."""
        found = []
        for number, block in enumerate(blocks, 1):
            spans = (PortSpan("udp", number, number),) if number < len(blocks) else ()
            rule = PolicyRule((IpBlock(block),), spans)
            found.append(Policy(Key("a", f"p{number}"), Selector(), _EGRESS, (), (rule,)))
        return self._policies(name, found)

    def tc(self, name: str, blocks: Blocks) -> tuple[Wires, Took]:
        wires = Wires(name, self._undo)
        pins = self._pins(name)
        took = _programmed(lambda: self._load(pins, blocks, "from_pod"))
        run(wires.node, ["tc", "qdisc", "add", "dev", "pod0", "clsact"])
        pinned = str(pins / "from_pod")
        words = ["dev", "pod0", "ingress", "bpf", "direct-action", "object-pinned", pinned]
        run(wires.node, ["tc", "filter", "add", *words])
        return wires, took

    def cgroup(self, name: str, blocks: Blocks) -> tuple[Wires, Took]:
        cgroup = self._mount("cgroup2") / f"lbn-{os.getpid()}-{name}"
        cgroup.mkdir()
        self._undo.callback(cgroup.rmdir)
        pins = self._pins(name)

        def program() -> None:
            self._load(pins, blocks, "from_cgroup", cgroup)

        took = _programmed(program)
        return Wires(name, self._undo, within=_inside_of(cgroup)), took

    # What they are made of

    def _policies(self, name: str, policies: Sequence[Policy]) -> tuple[Wires, Took]:
        wires = Wires(name, self._undo)

        def program() -> None:
            world = PolicyWorld({each.key: each for each in policies}, {}, {_LIMITED.key: _LIMITED})
            port = LocalPort(_LIMITED.key, "", "", "", _LIMITED.addresses)
            with wires.node.inside():
                kernel = PolicyKernel()
                kernel.change(NOTHING, plan_tables(compile_sides(world, [_LIMITED]), [port]))
            if kernel.put_whole:
                raise RuntimeError("the difference was refused")

        return wires, _programmed(program)

    def _restore(self, node: Netns, rules: str) -> None:
        established = "-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n"
        text = f"*filter\n:FORWARD DROP\n{established}{rules}COMMIT\n"
        self._tool(node, ["iptables-restore"], text)

    def _tool(self, node: Netns, command: list[str], text: str) -> None:
        folder = self._tools
        if folder is None:
            raise RuntimeError("iptables and ipset could not be fetched (scripts/fetch-filters)")
        libraries = [str(each) for each in folder.glob("usr/lib/*-linux-*")]
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(libraries),
            "XTABLES_LIBDIR": ":".join(f"{each}/xtables" for each in libraries),
            "XTABLES_LOCKFILE": str(self._folder / "xtables.lock"),
        }
        run(node, [str(folder / "bin" / command[0]), *command[1:]], text, environment)

    def _load(self, pins: Path, blocks: Blocks, program: str, cgroup: Path | None = None) -> None:
        assert self._object is not None  # or there would be no folder for pins
        bpf = Bpf()
        loaded = bpf.load(self._object, lambda name: pins / name)
        elements = [
            (_PREFIX.pack(each.prefixlen, each.network_address.packed), b"\1\0\0\0")
            for each in blocks
        ]
        loaded.maps["allowed"].put(elements)
        bpf.pin(loaded.programs[program].fd, pins / program)
        if cgroup is not None:
            fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
            bpf.pin(bpf.attach(loaded.programs[program], fd), pins / "link")

    def _pins(self, name: str) -> Path:
        if self._object is None:
            raise RuntimeError("no eBPF object: clang, libbpf-dev and linux-libc-dev build it")
        folder = self._mount("bpf") / name
        folder.mkdir()
        return folder

    def _mount(self, kind: str) -> Path:
        """A filesystem of that kind, for the bench alone."""
        if kind not in self._mounted:
            # Nothing is ever removed below: of cgroups those would be the machine's.
            at = Path(tempfile.mkdtemp(prefix="lbn-"))
            self._undo.callback(at.rmdir)
            subprocess.run(["mount", "-t", kind, "none", at], check=True, capture_output=True)
            self._undo.callback(_unmount, at)
            self._mounted[kind] = at
        return self._mounted[kind]


def _unmount(at: Path) -> None:
    subprocess.run(["umount", "--lazy", at], check=True)


def _inside_of(cgroup: Path) -> Within:
    """This process is in it meanwhile: so are the sockets that it makes."""

    @contextmanager
    def inside() -> Iterator[None]:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        before = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        try:
            _move_to(cgroup)
            yield
        finally:
            _move_to(cgroup.parent / before)

    return inside


def _move_to(cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))


def _tools() -> Path | None:
    """A folder with iptables and ipset; None: they cannot be fetched here."""
    fetched = subprocess.run([_ROOT / "scripts/fetch-filters"], stdout=subprocess.PIPE, text=True)
    return Path(fetched.stdout.strip()) if fetched.returncode == 0 else None


def _built(folder: Path) -> Path | None:
    """The eBPF object; None: there is no compiler for it here."""
    target = folder / "lpm.bpf.o"
    headers = f"-I/usr/include/{os.uname().machine}-linux-gnu"
    command = ["clang", "-O2", "-g", "-target", "bpf", headers, "-c", str(_SOURCE)]
    try:
        subprocess.run([*command, "-o", str(target)], check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return target


def _programmed(program: Callable[[], None]) -> Took:
    """By a process of its own, and those that it starts: their memory is counted.

    Raises: RuntimeError with its words.
    """
    reader, writer = os.pipe()
    before_mb = settled_kernel_mb()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(_told(program)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        text = told.read()
    os.waitpid(child, 0)
    found = json.loads(text or '{"error": "it died"}')
    if "error" in found:
        raise RuntimeError(found["error"])
    return Took(**found, kernel_megabytes=settled_kernel_mb() - before_mb)


def _told(program: Callable[[], None]) -> dict[str, float | str]:
    before_s = time.process_time()
    try:
        program()
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent says so
        return {"error": str(error)}
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    most_kib = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, children.ru_maxrss)
    spent_s = time.process_time() - before_s + children.ru_utime + children.ru_stime
    return {"cpu_ms": spent_s * 1e3, "megabytes": most_kib * 1024 / 1e6}
