"""`python -m bench`: a table for people on stdout, and build/bench.json for programs."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from bench.bed import Bed
from bench.figures import Figure, table
from bench.measures import MEASURES, Measure
from bench.nodes.netns import sweep

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
_FORKED = multiprocessing.get_context("fork")


def main() -> int:
    """0 when all that was measured worked, whether or not the targets were met; 1 when not."""
    options = _options()
    if os.geteuid() != 0:
        print("bench: must run as root: it makes network namespaces", file=sys.stderr)
        return 1
    # So that a `kill` or a timeout takes the namespaces and processes down too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bed = make_bed(reference_only=options.reference_only)
    print(_surroundings(bed), flush=True)
    load_before = os.getloadavg()[0]
    started = time.monotonic()
    quick = [name for name, (_, _, rounds) in MEASURES.items() if rounds]
    figures: list[Figure] = []
    failed = []
    for name in options.only or (quick if options.quick else MEASURES):
        measure, rounds, quick_rounds = MEASURES[name]
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        many = options.rounds or (options.quick and quick_rounds) or rounds
        found = _by_itself(measure, bed, many)
        if found is None:
            failed.append(name)
            continue
        figures += found
        # An hour of figures is not lost with who runs it.
        print(f"{table(found)}\n", file=sys.stderr, flush=True)
        _write(figures)
    print(f"\n{table(figures)}\n")
    for note in bed.notes:
        print(note)
    for figure in figures:
        if figure.met is False:
            print(f"MISSED: {figure.title}: the target is {figure.target}")
    for name in failed:
        print(f"DID NOT WORK: {name}; see above")
    print(
        f"took {time.monotonic() - started:.0f} s; medians [least..most] of interleaved rounds; "
        f"load before {load_before:.1f}, after {os.getloadavg()[0]:.1f}"
    )
    print(f"written: {_write(figures).relative_to(ROOT)}")
    return 1 if failed else 0


def _by_itself(measure: Measure, bed: Bed, rounds: int) -> list[Figure] | None:
    """In a process of its own: hundreds of megabytes that one measure needed count in no other's
    memory, and make none of its forks slow. None: it failed, and has said why."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = _FORKED.Process(target=_tell, args=(measure, bed, rounds, there))
    process.start()
    there.close()
    try:
        found, notes = here.recv()
    except EOFError:
        return None
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()
    bed.notes = notes
    return list(found)


def _tell(measure: Measure, bed: Bed, rounds: int, there: Connection) -> None:
    try:
        there.send((measure(bed, rounds), bed.notes))
    except Exception:  # noqa: BLE001 - what ends one measure ends none of the others
        traceback.print_exc()


def _write(figures: Sequence[Figure]) -> Path:
    output = BUILD / "bench.json"
    output.write_text(json.dumps([figure.as_json() for figure in figures], indent=1) + "\n")
    return output


def make_bed(*, reference_only: bool = False) -> Bed:
    """The reference fetched, what killed benches left removed."""
    fetch = subprocess.run([ROOT / "scripts/fetch-reference"], stdout=subprocess.PIPE, text=True)
    if fetch.returncode != 0:
        sys.exit("bench: the reference plugins are not there")
    disk_folder = BUILD / "bench"
    disk_folder.mkdir(parents=True, exist_ok=True)
    for name in sweep([disk_folder, Path("/run")]):
        print(f"bench: removed what an earlier run left: {name}", file=sys.stderr)
    return Bed(disk_folder, Path(fetch.stdout.strip()), reference_only)


def _surroundings(bed: Bed) -> str:
    filesystem = subprocess.run(
        ["stat", "-f", "-c", "%T", bed.disk_folder], capture_output=True, text=True, check=True
    ).stdout.strip()
    packages = (bed.reference_folder / ".unpacked").read_text().split("\n")[1:]
    system = os.uname()
    bridge_filter = Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
    return "\n".join(
        (
            f"kernel {system.release}, {os.cpu_count()} CPUs, data on {filesystem}, "
            f"br_netfilter {'loaded' if bridge_filter else 'not loaded'}",
            f"reference: {', '.join(filter(None, packages))}",
        )
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=MEASURES, help=", ".join(MEASURES)
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each measure")
    parser.add_argument(
        "--quick", action="store_true", help="what a change is likely to hurt, in a few minutes"
    )
    parser.add_argument(
        "--reference-only", action="store_true", help="leave Limpet out: the reference's figures"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
