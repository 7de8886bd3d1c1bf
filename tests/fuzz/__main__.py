"""`python -m tests.fuzz run [--seconds S] [TARGET…]`, `grow`, `play FILE…`, `line FILE…` or
`list`.

`run` ends with 3 where this run's own seed has found a fault, and with 1 where it could not start,
a target did not run, or there is a fault among the first inputs, which are the same in every run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import engine
from tests.fuzz.proportion import check_cost
from tests.fuzz.samples import GROWN, as_line
from tests.fuzz.target import Target

_COUNTED = ("limpet", "h11", "ipaddress")
"""Packages whose branches guide the search."""
FAILED, FOUND = 1, 3
"""Exit codes of `run`."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="look for faults")
    run.add_argument("--seconds", type=float, default=110.0, help="for all targets together")
    run.add_argument("--seed", type=int, help="of the random part; else a new one, which is told")
    run.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    run.add_argument("targets", nargs="*")
    for verb, words in (("play", "give an input once more"), ("line", "print it for corpora/")):
        files = verbs.add_parser(verb, help=words)
        files.add_argument("files", nargs="+", type=Path, help="TARGET-…, as `run` has named it")
    verbs.add_parser("grow", help="keep in corpora/ the least of what searches have found")
    verbs.add_parser("list", help="names of the targets")
    given = parser.parse_args()
    match given.verb:
        case "run":
            return _run(given.targets, given.seconds, given.seed, given.jobs)
        case "grow":
            return _grow()
        case "list":
            print(*_targets(), sep="\n")
        case "line":
            for path in given.files:
                print(as_line(_target_of(path).name, path.read_bytes()))
        case _:
            for path in given.files:
                data, target = path.read_bytes(), _target_of(path)
                taken = target.attempt(data)
                cost = check_cost(target, data)
                print(f"{target.name}: {len(data)} bytes, taken: {taken}, {cost}")
    return 0


def _targets() -> dict[str, Target]:
    from tests.fuzz.targets import TARGETS

    return TARGETS


def _target_of(path: Path) -> Target:
    """By the longest name that the file's begins with."""
    known = _targets()
    found = [name for name in known if path.name.startswith(f"{name}-") or path.parent.name == name]
    if not found:
        sys.exit(f"{path}: no target is called so (python -m tests.fuzz list)")
    return known[max(found, key=len)]


def _run(names: list[str], seconds: float, seed: int | None, jobs: int) -> int:
    # What a hash decides is the same in each run with the same seed.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    try:
        atheris, known = engine.load(_COUNTED)
    except ImportError as error:
        sys.exit(f"no atheris here ({error}): `make fuzz` gets it (x86-64, Python 3.11 to 3.13)")
    if unknown := set(names) - known.keys():
        sys.exit(f"{', '.join(unknown)}: no such target (python -m tests.fuzz list)")
    if seed is None:
        seed = 1 + int.from_bytes(os.urandom(3), "big")
    chosen = [known[name] for name in names or known]
    print(f"{len(chosen)} targets, {seconds:g} s in all, --seed {seed}", flush=True)
    ran = []
    for each in engine.run(atheris, chosen, seconds, seed, jobs):
        ran.append(each)
        print(
            f"{each.target.name:36} {each.inputs:>9,} inputs  coverage {each.coverage_before:>5} "
            f"-> {each.coverage:>5}  {each.grown:>5} kept  {len(each.faults)} faults",
            flush=True,
        )
        for path in each.faults:
            when = ", as in every run" if path in each.first_faults else ""
            print(f"  fault{when}: {sys.executable} -m tests.fuzz play {path}", flush=True)
    faults = sum(len(each.faults) for each in ran)
    print(f"{sum(each.inputs for each in ran):,} inputs, {faults} faults")
    if silent := [each.target.name for each in ran if _is_for_nothing(each)]:
        print(f"did not run to the end: {', '.join(silent)} (see {engine.HOME / 'logs'})")
    return exit_code(ran)


def exit_code(ran: Sequence[engine.Ran]) -> int:
    if not ran or any(_is_for_nothing(each) or each.first_faults for each in ran):
        return FAILED
    return FOUND if any(each.faults for each in ran) else 0


def _is_for_nothing(ran: engine.Ran) -> bool:
    return ran.broke or not (ran.inputs or ran.faults)


def _grow() -> int:
    from tests.fuzz import growth

    grown = []
    for each in growth.grow(_targets().values()):
        grown.append(each)
        print(
            f"{each.target.name:36} {each.steps_before:>5} -> {each.steps:>5} steps by "
            f"{len(each.inputs):>3} inputs  {len(each.faults)} faults",
            flush=True,
        )
        for data in each.faults:
            print(f"  fault: {as_line(each.target.name, data)}")
    print(f"{growth.write(grown):,} bytes in {GROWN}")
    return 1 if any(each.faults for each in grown) else 0


if __name__ == "__main__":
    sys.exit(main())
