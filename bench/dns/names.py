"""Names: the process that answers them, asked by a client of its own process in one namespace.

    client ── 169.254.20.10 on limdns0 ── limpet dns serve ── 127.0.0.9: an upstream that knows all
           └─ 127.0.0.10 ── CoreDNS, with an API server that has the same Services ─┘

Client and upstream are a program in C (`dns_ends.c`), so that neither is what is measured.
Questions come at a fixed rate, whatever becomes of those before, as those of many pods do; and then
as fast as they are answered. Processor time is that of the process that answers; memory is that of
its keeper too, of which each node of a DaemonSet has one.

Names are kept when the upstream hears nothing of them: they are asked until that is so, unmeasured,
before each turn, since other names were asked meanwhile, which take their places, and CoreDNS keeps
none for longer than 30 s. A turn in which the upstream does hear of one measures nothing.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

from bench.bed import Bed
from bench.dns.coredns import start_coredns
from bench.figures import Figure, Target
from bench.nodes.netns import Netns
from bench.nodes.resident import cpu_s, own_mb, resident_mb
from limpet.services.kept import KEPT_FILE, encode_items
from limpet.services.values import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort

SERVICES = 1000
RATE = 2000
_QUESTIONS_S = 4
_PASS_S = SERVICES / RATE
"""In which a client asks each name once."""
_PASSES = 10
_UPSTREAM = "127.0.0.9"
_COUNT = struct.Struct("=Q")
_TOLD_S = 10.0
_OURS, _COREDNS = "169.254.20.10", "127.0.0.10"
_Found = dict[tuple[str, str, str], list[float]]
"""Samples by side, kind of names, and what they are of."""
_P99_MS = 2.0
_KINDS = (
    ("cluster", "names of the cluster"),
    ("kept", "other names, kept"),
    ("fresh", "other names, each asked of the upstream"),
)


def dns(bed: Bed, rounds: int) -> list[Figure]:
    """Latency at 2,000 questions a second, processor time of each, and the most in a second; where
    it is built, of CoreDNS too, on the same cores in turn."""
    if bed.reference_only:
        return []
    found: _Found = {}
    with ExitStack() as undo:
        netns = Netns("dns")
        undo.callback(netns.close)
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        ours, keeper = _start(netns, folder, undo)
        pids = {_OURS: ours}
        ends = _build_ends(folder)
        _start_upstream(netns, ends, undo)
        names = [f"web-{number}" for number in range(SERVICES)]
        other = start_coredns(
            netns, folder, undo, address=_COREDNS, upstream=_UPSTREAM, names=names
        )
        if other is None:
            bed.notes.append(
                "dns: CoreDNS is left out: it is not built (scripts/fetch-kubernetes coredns "
                "etcd kube-apiserver kubectl; the first of each takes minutes)"
            )
        else:
            pids[_COREDNS] = other
        for _ in range(rounds):
            for kind, _ in _KINDS:
                for rate in (RATE, 0):
                    for side, pid in pids.items():
                        client = [ends, "client", side, kind, rate, SERVICES, _QUESTIONS_S]
                        turn = list(map(str, client))
                        if kind == "kept":
                            _have_kept(netns, ends, side)
                        before = _asked_of_upstream(netns)
                        _measure(found, netns, turn, side, pid)
                        if kind == "kept" and (more := _asked_of_upstream(netns) - before):
                            raise RuntimeError(f"{side} did not keep {more} names")
        bed.notes += [
            f"dns: {sum(found[side, kind, 'lost']):.0f} of {words} were never answered by {side}"
            for side in pids
            for kind, words in _KINDS
            if sum(found[side, kind, "lost"])
        ]
        resident = {side: [resident_mb(pid)] for side, pid in pids.items()}
        keeper_mb = own_mb(keeper)
    return [
        *(each for kind, words in _KINDS for each in _figures(kind, words, found)),
        Figure(
            "dns-memory",
            f"dns: resident, {SERVICES} Services, with its keeper",
            "MB",
            [each + keeper_mb for each in resident[_OURS]],
            resident.get(_COREDNS, ()),
        ),
        Figure(
            "dns-memory-systemd",
            "... under systemd, which needs no keeper",
            "MB",
            resident[_OURS],
            resident.get(_COREDNS, ()),
        ),
    ]


def _have_kept(netns: Netns, ends: Path, side: str) -> None:
    """Names are asked until that side answers all of them from what it keeps.

    More than once: who has no room gives up another name for each, which may be one of these.
    """
    client = [str(each) for each in (ends, "client", side, "kept", RATE, SERVICES, _PASS_S)]
    for _ in range(_PASSES):
        before = _asked_of_upstream(netns)
        with netns.inside():
            subprocess.run(client, stdout=subprocess.DEVNULL, check=True)
        if _asked_of_upstream(netns) == before:
            return
    raise RuntimeError(f"{side} does not keep {SERVICES} names")


def _asked_of_upstream(netns: Netns) -> int:
    """How many questions for kept names the upstream has had."""
    with netns.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.settimeout(_TOLD_S)
        made.sendto(b"", (_UPSTREAM, 53))
        count: int = _COUNT.unpack(made.recv(_COUNT.size))[0]
    return count


def _measure(found: _Found, netns: Netns, client: list[str], side: str, pid: int) -> None:
    kind, rate = client[3:5]
    before_s = cpu_s(pid)
    with netns.inside():
        said = subprocess.run(client, stdout=subprocess.PIPE, check=True).stdout
    answer = json.loads(said)
    if int(rate):
        used_s = cpu_s(pid) - before_s
        values = {
            "p50": answer["p50_ms"],
            "p99": answer["p99_ms"],
            "cpu": used_s / max(answer["answered"], 1) * 1e6,
            "lost": answer["asked"] - answer["answered"],
        }
    else:
        values = {"most": answer["answered"] / answer["took_s"]}
    for what, value in values.items():
        found.setdefault((side, kind, what), []).append(value)


def _figures(kind: str, words: str, found: _Found) -> list[Figure]:
    def both(what: str) -> tuple[list[float], list[float]]:
        return found[_OURS, kind, what], found.get((_COREDNS, kind, what), [])

    median = statistics.median(found[_OURS, kind, "p50"])
    title = f"dns: {words}: p99 at {RATE:,}/s (p50 {median:.2f} ms)"
    return [
        Figure(
            f"dns-{kind}-p99",
            title,
            "ms",
            *both("p99"),
            target=Target(_P99_MS, of_ratio=False),
        ),
        Figure(f"dns-{kind}-cpu", "... processor time of each", "CPU us", *both("cpu")),
        Figure(f"dns-{kind}-most", "... the most answered", "1/s", *both("most")),
    ]


def _build_ends(folder: Path) -> Path:
    """The program that is either end."""
    program, source = folder / "dns_ends", Path(__file__).with_name("dns_ends.c")
    subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
    return program


def _start_upstream(netns: Netns, ends: Path, undo: ExitStack) -> None:
    with netns.inside():
        process = subprocess.Popen([str(ends), "upstream", _UPSTREAM], stdout=subprocess.PIPE)
    undo.enter_context(process)
    undo.callback(process.kill)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError("the upstream has ended")


def _start(netns: Netns, folder: Path, undo: ExitStack) -> tuple[int, int]:
    """The process that answers, and its keeper: what is there where systemd does not start it, as
    in the pod of a DaemonSet."""
    cluster = folder / "state" / "cluster"
    cluster.mkdir(parents=True)
    items: list[Service | EndpointSlice] = []
    for number in range(SERVICES):
        name, at = f"web-{number}", f"10.96.{number // 250}.{number % 250 + 1}"
        ports, end = (ServicePort("http", "TCP", 80),), Endpoint(f"10.1.{number % 250}.2")
        items.append(Service("default", name, cluster_ips=(at,), ports=ports))
        pods = (EndpointPort("http", "TCP", 8080),)
        items.append(EndpointSlice("default", f"{name}-1", name, 4, pods, (end,)))
    (cluster / KEPT_FILE).write_bytes(encode_items(items))
    (folder / "resolv.conf").write_text(f"nameserver {_UPSTREAM}\n")
    config = folder / "agent.toml"
    config.write_text(
        f'dns = "on"\nstate_dir = "{folder}/state"\nrun_dir = "{folder}/run"\n'
        f'dns_resolv_conf = "{folder}/resolv.conf"\n'
    )
    command = [sys.executable, "-m", "limpet", "dns", "serve", "--config", str(config)]
    with netns.inside():
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    undo.callback(process.wait)
    undo.callback(process.terminate)
    answering = wait_until(lambda: _answering(process.pid, folder), "the process answers")
    return answering, process.pid


def _answering(keeper: int, folder: Path) -> int:
    """What the keeper has started, once it has its socket; 0: not yet."""
    children: Any = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    ready = os.path.exists(folder / "run" / "dns.sock")
    return int(children[0]) if ready and children else 0
