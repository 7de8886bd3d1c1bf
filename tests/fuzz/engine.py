"""Runs targets under atheris: each in a process of its own, forked from one that has loaded all of
Limpet with its branches counted, as many at once as there are processors.

What grows the coverage is kept in `build/fuzz/corpus/TARGET`, what is a fault in
`build/fuzz/faults/TARGET-…` (`TARGET-first-…`, if it is one in every run), what the engine said in
`build/fuzz/logs/TARGET`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import ModuleType
from typing import NoReturn

import structlog

from tests.fuzz.mutation import mutate
from tests.fuzz.proportion import check_cost, check_cpu
from tests.fuzz.samples import samples_of
from tests.fuzz.target import Target

HOME = Path(__file__).parents[2] / "build" / "fuzz"
FIXED_SEED = 1
FIXED_RUNS = 1_500
"""Inputs of each target that are the same in every run, before those of a new seed; fewer where
half of its time does not do for them."""
_MEMORY_MIB = 1_024
_SILENT_S = 60
"""Of one input; by the clock, so far above what a busy machine needs."""
_STRUCTURED = 0.5
"""Share of mutations that keep to the input's shape; the others are libFuzzer's own."""
_RUNS = re.compile(r"stat::number_of_executed_units: (\d+)")
_BROKE = "tests.fuzz: the search broke"
_COVERAGE = re.compile(r"cov: (\d+)")


@dataclass
class Ran:
    """How one target did."""

    target: Target
    inputs: int = 0
    coverage_before: int = 0
    """Counted branches that the samples reach."""
    coverage: int = 0
    grown: int = 0
    """Inputs that were kept because they reach what no other does."""
    faults: list[Path] = field(default_factory=list)

    broke: bool = False
    """A search ended badly, and left no input by which it did."""

    @property
    def first_faults(self) -> list[Path]:
        """Those among the inputs that are the same in every run."""
        return [each for each in self.faults if each.name.startswith(_first(self.target))]


def load(counted: Sequence[str]) -> tuple[ModuleType, dict[str, Target]]:
    """atheris, and the targets with their branches counted. Nothing of `counted` may be loaded yet.

    Raises: ImportError where there is no atheris.
    """
    import atheris

    # The build's own file, which is not where the others are: found while who knows where is there.
    importlib.import_module("limpet._version")

    structlog.configure(processors=[_drop])
    # atheris counts in what Python's own finder finds, and asks after those of editable packages.
    sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in type(each).__module__]
    sys.path.insert(0, str(HOME.parents[1] / "src"))
    with _quiet(), atheris.instrument_imports(include=list(counted)):
        from tests.fuzz.targets import TARGETS
    return atheris, TARGETS


def _drop(*_: object) -> NoReturn:
    """What parsers log of each input nobody reads."""
    raise structlog.DropEvent


def run(
    engine: ModuleType, targets: Sequence[Target], seconds: float, seed: int, at_once: int
) -> Iterator[Ran]:
    """Each as it ends; all of them together take about `seconds`."""
    share_s = seconds * at_once / len(targets)
    waiting, running = list(targets), dict[int, Target]()
    while waiting or running:
        while waiting and len(running) < at_once:
            target = waiting.pop(0)
            running[_fork(lambda t=target: _run_one(engine, t, share_s, seed))] = target  # type: ignore[misc]
        pid, _ = os.wait()
        if pid in running:
            yield _result(running.pop(pid))


def _fork(work: Callable[[], None]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def _run_one(engine: ModuleType, target: Target, share_s: float, seed: int) -> None:
    """First the inputs that are always the same, then those of this run's seed."""
    log = os.open(_path("logs") / target.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    began_s = time.monotonic()
    for path in _faults(target):
        path.unlink()
    seeds = _path("seeds", target.name)
    for number, each in enumerate(samples_of(target)):
        (seeds / f"{number:03}").write_bytes(each)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as fresh:
        pid = _fork(
            lambda: _search(
                engine,
                target,
                [fresh, str(seeds)],
                _first(target),
                f"-seed={FIXED_SEED}",
                f"-runs={FIXED_RUNS}",
                f"-max_total_time={max(1, round(share_s / 2))}",  # 0 is for ever
            )
        )
        _note_end(target, pid, _first(target))
    corpus = _path("corpus", target.name)
    left_s = max(1, round(share_s - (time.monotonic() - began_s)))
    for_good = [str(corpus), str(seeds)]
    since_ns = time.time_ns()
    pid = _fork(
        lambda: _search(
            *(engine, target, for_good, f"{target.name}-"),
            *(f"-seed={seed}", f"-max_total_time={left_s}"),
        )
    )
    _note_end(target, pid, f"{target.name}-")
    _look_at_cost(target, [each for each in corpus.iterdir() if each.stat().st_mtime_ns > since_ns])


def _note_end(target: Target, pid: int, called: str) -> None:
    """Waits for a search. Its log says if it has ended badly and wrote down no input."""
    _, status = os.waitpid(pid, 0)
    if status and not any(_path("faults").glob(f"{called}[a-z]*-*")):
        sys.stderr.write(f"{_BROKE} with status {status}\n")
        sys.stderr.flush()


def _first(target: Target) -> str:
    """How files of faults begin that the inputs of the fixed seed have found."""
    return f"{target.name}-first-"


def _search(
    engine: ModuleType, target: Target, folders: list[str], called: str, *options: str
) -> None:
    """Does not return: libFuzzer ends the process. `called`: how files of faults begin."""

    def one(data: bytes) -> None:
        check_cpu(target, data)

    def mutation(data: bytes, most_bytes: int, seed: int) -> bytes:
        chance = Random(seed)
        if chance.random() < _STRUCTURED:
            return mutate(data, target.shape, chance, min(most_bytes, target.most_bytes))
        found: bytes = engine.Mutate(data, most_bytes)
        return found

    arguments = [
        "fuzz",
        *folders,
        *options,
        f"-max_len={target.most_bytes}",
        f"-rss_limit_mb={_MEMORY_MIB}",
        f"-timeout={_SILENT_S}",
        f"-report_slow_units={_SILENT_S}",  # by the clock too: what is slow `check_cpu` says
        f"-artifact_prefix={_path('faults')}/{called}",
        "-print_final_stats=1",
    ]
    engine.Setup(arguments, one, custom_mutator=mutation, internal_libfuzzer=True)
    try:
        engine.Fuzz()
    finally:
        # An exception has come out of `one`. libFuzzer writes down which input it was when the
        # process ends by C's exit(), and `os._exit` would pass over that.
        ctypes.CDLL(None).exit(1)


def _look_at_cost(target: Target, inputs: Sequence[Path]) -> None:
    """Of those that were kept, what they cost in lines and memory is counted."""
    for path in inputs:
        data = path.read_bytes()
        try:
            check_cost(target, data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            sys.stderr.write(f"cost of {path}: {error!r}\n")
            (_path("faults") / f"{target.name}-cost-{path.name}").write_bytes(data)


def _result(target: Target) -> Ran:
    said = (_path("logs") / target.name).read_text(errors="replace")
    coverage = [int(each) for each in _COVERAGE.findall(said)]
    last = said.rpartition("INFO: Seed:")[2]
    kept = [int(each) for each in _COVERAGE.findall(last)]
    return Ran(
        target,
        sum(int(each) for each in _RUNS.findall(said)),
        coverage[0] if coverage else 0,
        max(kept, default=0),
        len(list(_path("corpus", target.name).iterdir())),
        _faults(target),
        broke=_BROKE in said,
    )


def _faults(target: Target) -> list[Path]:
    return sorted(_path("faults").glob(f"{target.name}-*-*"))


def _path(*parts: str) -> Path:
    path = HOME.joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


class _quiet:
    """Without the line that atheris writes for each module."""

    def __enter__(self) -> None:
        self._kept = os.dup(2)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._kept, 2)
        os.close(self._kept)
