"""Makes each bound larger where the product goes by it, one place after the other, and prints where
no probe notices: `scripts/mutate-bounds`, by hand.

It works in a copy of the checkout. A probe that stops at the table itself, or goes by one of two
places that have the bound, is told by this alone.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limpet.base.bounds.table import TABLE
from tests.unit.base.bounds.outside.uses import Row, Use, all_uses

_REPOSITORY = Path(__file__).parents[5]
_COPIED = ("src", "tests")
_LONGEST_S = 300
"""Of a probe, which never comes to an end where what it waits for is not refused any more."""
_MOST_MEMORY_BYTES = 8 << 30
_NOTICED, _MISSED, _FAILED = 0, 1, 2
_UNNOTICED = "NOT NOTICED"
_ALIKE = {
    ("nat/port_mapping.py", "GATEWAY_LEASE_S", 0): "what is asked for: what is given has a place",
    ("paths/report.py", "REPORTED_WORDS", 1): "what is longer was refused before",
    ("cli/netcheck/tcp.py", "NETCHECK_ANSWER", 0): "what is read next is cut by the same bound",
    ("cluster/exchange/digest.py", "MAX_VERSION", 0): "where a bit of a number stands",
    ("cluster/exchange/digest.py", "MAX_VERSION", 1): "where a bit of a number stands",
    ("dns/wire.py", "DNS_TTL_S", 1): "the record's own time is cut by the same bound",
    ("dns/forward/forwarder.py", "DNS_FORWARDED", 1): "when it is looked which of them are over",
}
"""File, row, and which of its places in the file, where nobody could see a larger bound; and why
that is so."""
_REDIRECTING = """
import sys

for finder in sys.meta_path:
    files = getattr(finder, "known_source_files", {})
    files.update({name: path.replace(BEFORE, AFTER) for name, path in files.items()})
    for name, places in getattr(finder, "submodule_search_locations", {}).items():
        places[:] = [each.replace(BEFORE, AFTER) for each in places]
"""
"""An installed checkout is found by a finder that knows its folder by heart."""


def main() -> int:
    """Exit code: 1: a place was found that nothing notices."""
    parser = argparse.ArgumentParser(prog="scripts/mutate-bounds", description=__doc__)
    parser.add_argument("word", nargs="*", help="only places or rows with one of these in it")
    parser.add_argument("--times", type=int, default=7, help="how much larger (default: 7)")
    parser.add_argument("--tests", action="store_true", help="also by the tests of `elsewhere`")
    asked = parser.parse_args()
    os.nice(10)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="bounds.") as folder:
        copy = _copied(Path(folder, "limpet"))
        places: Counter[tuple[str, str]] = Counter()
        for path, use in all_uses():
            which = places[path, use.row[1]]
            places[path, use.row[1]] += 1
            words = f"src/limpet/{path}:{use.node.lineno} {'.'.join(use.row)}"
            if asked.word and not any(word in words for word in asked.word):
                continue
            with _larger(copy / "src" / "limpet" / path, path, use, asked.times):
                told = _told(copy, use.row, by_tests=asked.tests)
            if told == _UNNOTICED and (why := _ALIKE.get((path, use.row[1], which))):
                told = f"left: {why}"
            missed += told == _UNNOTICED
            _say(f"{words}: {told}")
    _say(f"{missed} places that nothing notices")
    return int(missed > 0)


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def _copied(copy: Path) -> Path:
    """What is read, and not changed, is linked."""
    copy.mkdir()
    for each in _REPOSITORY.iterdir():
        if each.name in _COPIED:
            shutil.copytree(each, copy / each.name, symlinks=True)
        elif each.name != ".git":
            (copy / each.name).symlink_to(each)
    names = f"BEFORE, AFTER = {str(_REPOSITORY / 'src')!r}, {str(copy / 'src')!r}\n"
    (copy / "sitecustomize.py").write_text(names + _REDIRECTING, encoding="utf-8")
    return copy


@contextmanager
def _larger(file: Path, path: str, use: Use, times: int) -> Iterator[None]:
    """While it lasts, the file goes by a larger bound in this one place."""
    before, at = file.read_bytes(), file.stat()
    changed = Larger(use, times).visit(ast.parse(before))
    file.write_text(ast.unparse(ast.fix_missing_locations(changed)), encoding="utf-8")
    try:
        yield
    finally:
        file.write_bytes(before)
        os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns))  # what is compiled of it is good


class Larger(ast.NodeTransformer):
    """Puts a larger bound in one place."""

    def __init__(self, use: Use, times: int) -> None:
        self._use, self._times = use, times
        self._text = ast.unparse(use.node)
        self._place = ast.dump(use.node, include_attributes=True)

    def visit(self, node: ast.AST) -> ast.AST:
        if ast.dump(node, include_attributes=True) != self._place:
            return self.generic_visit(node)
        row = self._text.removesuffix(".most")
        larger = f"__import__('dataclasses').replace({row}, most={row}.most * {self._times})"
        return ast.parse(larger + ".most" * self._use.is_number, mode="eval").body


def _told(copy: Path, row: Row, *, by_tests: bool) -> str:
    modules, tests = _probed(row)
    results = [_in_fork(copy, row, modules)] if modules else []
    if by_tests and _NOTICED not in results:
        results += [_by_test(copy, test) for test in tests]
    if _NOTICED in results:
        return "noticed"
    if tests and not by_tests:
        return f"left to {', '.join(tests)}"
    return _UNNOTICED if _MISSED in results else "it could not be tried"


def _probed(row: Row) -> tuple[list[str], list[str]]:
    """Modules with probes of the row, and tests that go by it."""
    table = importlib.import_module("tests.unit.base.bounds.test_table")
    bound = TABLE[row[0]][row[1]]
    probes = table.PROBES.get(id(bound), [])
    tests = [test for other, test in table.ELSEWHERE if other is bound]
    return sorted({each.takes.__module__ for each in probes}), tests


def _in_fork(copy: Path, row: Row, modules: list[str]) -> int:
    """In a process that has loaded what Limpet needs, and loads Limpet from the copy."""
    child = os.fork()
    if not child:
        said, silent = os.dup(1), os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LONGEST_S)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
        try:
            os._exit(_probe(copy, row, modules))
        except AssertionError:
            os._exit(_NOTICED)
        except BaseException as error:  # noqa: BLE001 - the child has to end here
            os.write(said, f"  {type(error).__name__}: {error}\n".encode())
            os._exit(_NOTICED)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return _NOTICED if code == -signal.SIGALRM else code if code >= 0 else _FAILED


def _probe(copy: Path, row: Row, modules: list[str]) -> int:
    for name in list(sys.modules):
        if name.split(".")[0] in ("limpet", "tests"):
            del sys.modules[name]
    sys.dont_write_bytecode = True
    exec((copy / "sitecustomize.py").read_text(encoding="utf-8"), {})
    sys.path.insert(0, str(copy))
    assert str(copy) in str(importlib.import_module("limpet").__file__)
    for name in modules:
        importlib.import_module(name)
    bound = importlib.import_module("limpet.base.bounds.table").TABLE[row[0]][row[1]]
    probes = importlib.import_module("tests.unit.base.bounds.probes").PROBES[id(bound)]
    held = all(each.takes(bound.most) and not each.takes(each.above) for each in probes)
    return _MISSED if held else _NOTICED


def _by_test(copy: Path, test: str) -> int:
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True)
    return {0: _MISSED, 1: _NOTICED}.get(done.returncode, _FAILED)


if __name__ == "__main__":
    raise SystemExit(main())
