"""Where the time of ADD and DEL goes: `python -m bench.profile WAY`.

    calls     system calls counted and timed (strace -c) over some ADDs and DELs
    timeline  every system call of one ADD and one DEL, plugin and agent side by side
    python    functions of the agent's main thread (cProfile) over some ADDs and DELs
    imports   what the agent loads at its start, and how long each module takes

Being watched slows things down: compare what is here with itself, never with `python -m bench`.
"""

from __future__ import annotations

import argparse
import json
import pstats
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.__main__ import BUILD, make_bed
from bench.nodes.launch import Command, run
from bench.nodes.node import Node, Pod
from bench.nodes.plugins import Limpet, Plugin, Reference

_SETTLE_S = 0.5
"""So that what the agent still does for the last request is not in the next one's timeline."""

WAYS = ("calls", "timeline", "python", "imports")


def main() -> int:
    """Prints the profile; the raw files are kept in build/profile/."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--side", choices=("limpet", "reference"), default="limpet")
    parser.add_argument("--pods", type=int, default=50, metavar="N")
    parser.add_argument("--lines", type=int, default=40, metavar="N", help="of each table")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = BUILD / "profile"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bed = make_bed()
    with ExitStack() as undo:
        node = Node("profile", bed.disk_folder)
        undo.callback(node.close)
        if options.way in ("python", "imports"):
            _profile_agent(node, options.way, options.pods, options.lines, folder)
            return 0
        side: Plugin
        if options.side == "reference":
            side = Reference(node, bed.reference_folder)
        else:
            side = Limpet(node)
        undo.callback(side.close)
        resident, pod = node.new_pods(2)
        side.add(resident)
        side.add(pod)
        side.delete(pod)
        if options.way == "calls":
            _count_calls(side, pod, options.pods, options.lines, folder)
        else:
            _show_timeline(side, pod, folder)
    return 0


def _count_calls(side: Plugin, pod: Pod, rounds: int, lines: int, folder: Path) -> None:
    """Wall time by system call: of the last ADD and the last DEL, of the agent over all."""
    with _watched_agent(side, folder / "agent", ["-c", "-w"]):
        for _ in range(rounds):
            for verb in ("ADD", "DEL"):
                _do(side, verb, pod, ["-f", "-c", "-w", "-o", str(folder / verb)])
    for name, title in (
        ("ADD", f"{side.label} ADD: the plugin and all that it starts"),
        ("DEL", f"{side.label} DEL: the plugin and all that it starts"),
        ("agent", f"agent, over {rounds} ADDs and DELs"),
    ):
        if (folder / name).exists():
            print(f"\n{title}")
            print("\n".join((folder / name).read_text().splitlines()[:lines]))


def _show_timeline(side: Plugin, pod: Pod, folder: Path) -> None:
    # Without futex: they are the interpreter lock changing hands, and hide the rest.
    detail = ["-e", "trace=!futex", "-ttt", "-T", "-yy", "-s", "120"]
    for verb in ("ADD", "DEL"):
        agent, plugin = folder / f"{verb}.agent", folder / f"{verb}.plugin"
        with _watched_agent(side, agent, detail):
            time.sleep(_SETTLE_S)
            _do(side, verb, pod, ["-f", *detail, "-o", str(plugin)])
        calls = []
        for who, output in (("plugin", plugin), ("agent", agent)):
            if output.exists():
                for line in output.read_text(errors="replace").splitlines():
                    # With -f each line begins with the thread's number.
                    thread, at, call = line.split(maxsplit=2)
                    calls.append((float(at), who, thread, call))
        calls.sort()
        begin = next(when for when, who, _, _ in calls if who == "plugin")
        print(f"\n{side.label} {verb}: ms since its start, who, thread, system call <s it took>")
        for when, who, thread, call in calls:
            if when < begin:
                continue
            print(f"{(when - begin) * 1000:9.3f} {who:6} {thread:>7} {call}")


def _do(side: Plugin, verb: str, pod: Pod, strace: list[str]) -> None:
    """One ADD or DEL with the plugin under strace."""
    if verb == "ADD":
        pod.renew()
        links = set()
    else:
        links = side.node.pod_links_of(pod)
    command = side.command(verb, pod)
    side.node.links.forget_events()
    with side.node.netns.inside():
        outcome = run(_under_strace(command, strace)).check()
    pod.result = json.loads(outcome.stdout) if verb == "ADD" else {}
    side.node.links.wait_until_gone(links, limit_s=10)


def _under_strace(command: Command, arguments: list[str]) -> Command:
    strace = shutil.which("strace")
    if strace is None:
        sys.exit("bench.profile: needs strace: apt-get install strace")
    return replace(command, program=strace, arguments=(*arguments, command.program))


@contextmanager
def _watched_agent(side: Plugin, output: Path, arguments: list[str]) -> Iterator[None]:
    """strace on all threads of the agent meanwhile; nothing for a side without an agent."""
    if not isinstance(side, Limpet):
        yield
        return
    command = ["strace", "-f", *arguments, "-o", str(output), "-p", str(side.agent_pid)]
    # Started in the node's namespace, for there it can tell what kind of netlink a socket is.
    with side.node.netns.inside():
        watcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with watcher:
        assert watcher.stderr is not None
        try:
            for line in watcher.stderr:
                if "attached" in line:
                    break
            yield
        finally:
            watcher.send_signal(signal.SIGINT)
            watcher.communicate()


def _profile_agent(node: Node, way: str, rounds: int, lines: int, folder: Path) -> None:
    output = folder / "agent.profile"
    cprofile = ("-m", "cProfile", "-o", str(output))
    watching = cprofile if way == "python" else ("-X", "importtime")
    side = Limpet(node, (sys.executable, *watching, "-m"))
    try:
        if way == "python":
            (pod,) = node.new_pods(1)
            for _ in range(rounds):
                side.add(pod)
                side.delete(pod)
    finally:
        side.close()
    if way == "python":
        pstats.Stats(str(output)).sort_stats("tottime").print_stats(lines)
        return
    took = [line for line in side.log_tail(1 << 20).splitlines() if line.startswith("import time")]
    print("\n".join(took[:1] + sorted(took[1:], key=_cumulative, reverse=True)[:lines]))
    print(f"ready after {side.ready_ms:.0f} ms")


def _cumulative(line: str) -> int:
    return int(line.split("|")[1])


if __name__ == "__main__":
    sys.exit(main())
