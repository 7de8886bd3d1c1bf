"""What scripts fetch from others is verified, whatever fetches it: a new download that is not fails
here."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
_FOLDERS = ("scripts", "release", "deploy", ".ci")
_PROGRAMS = {"", ".sh", ".py"}
"""Suffixes of files that are run, but for the Makefile."""

_WORD, _AFTER = r"(?<![\w.-])", r"(?![\w./-])"
"""Around a program's name, which may have its folder before it."""
PIP = re.compile(r"(?:\bpip3?|'pip',)\W+(install|download|wheel|compile|sync)\b")
RAW = re.compile(
    rf"{_WORD}(?:curl|wget|aria2c|ftp|rsync|scp|skopeo|docker|git (?:clone|fetch|pull)){_AFTER}"
    r"|urlopen|urlretrieve|http\.client|\brequests\.get|ClientSession"
)
"""Brings bytes that nobody has looked at: behind it a checksum has to be compared."""
COMPARED = re.compile(r"sha(?:256|512)sum\b.* (?:-c|--check)\b|sha(?:256|512)\(\w+\) !=")
NPM = re.compile(rf"{_WORD}(?:npm (\w+)|npx|yarn|pnpm){_AFTER}")
OTHERS = re.compile(
    rf"{_WORD}(?:pipx|easy_install|poetry|uvx|cargo|gem|cpan|luarocks|conda|snap|flatpak){_AFTER}"
    rf"|{_WORD}go (?:install|get|run)\b.*@|playwright install"
)
"""Tools that no rule here knows."""
UNVERIFIED = re.compile(
    r"allow-?(?:unauthenticated|insecure)|--no-check-certificate|--trusted-host|--insecure\b"
    r"|GONOSUM|GONOSUMDB|GOINSECURE|GOSUMDB=off|-mod=mod|GOFLAGS=-insecure|strict-ssl",
    re.IGNORECASE,
)
"""Has a tool verify nothing that verifies by itself: apt by keys, Go by go.sum."""
TRUSTED = re.compile(r"trusted=yes\](?! copy:\$PWD/)")
"""A source of apt without a key that is not a folder beside the script."""


def commands(text: str, *, is_python: bool) -> Iterator[str]:
    """Each in one line, without comments and without messages to people."""
    if not is_python:
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            said = re.sub(r"""(?:say|fail) (?:"[^"]*"|'[^']*')""", "", line)
            yield re.sub(r"(?:^|\s)#.*", "", said)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            if not isinstance(getattr(node, "value", None), ast.Constant | ast.JoinedStr):
                yield ast.unparse(node)
        elif isinstance(node, ast.With):
            yield from (ast.unparse(each) for each in node.items)


def unverified(text: str, *, is_python: bool = False) -> Iterator[str]:
    """Commands of a script that fetch what nothing verifies. A helper of Python's that makes the
    beginning of a command is judged where it is used."""
    found = list(commands(text, is_python=is_python))
    helpers = helpers_of(text) if is_python else {}
    if helpers:
        found = [each for each in found if each not in helpers.values()]
    begins = [rf"\*{name}\(" for name in helpers]
    for number, line in enumerate(found):
        behind = "\n".join(found[number:])
        if PIP.search(line) or any(re.search(each, line) for each in begins):
            is_local = "--no-deps" in line and not re.search(r"requirement|-r\b|==", line)
            is_locking = "uv pip compile" in line and "--generate-hashes" in line
            is_known = re.search(r"--(require-hashes|no-index)\b", line)
            if not (is_local or is_locking or is_known):
                yield line
        if RAW.search(line) and not COMPARED.search(behind):
            yield line
        if (npm := NPM.search(line)) and not (
            npm[1] == "ci"
            or (npm[1] == "pack" and re.search(r'!= "\$integrity"|= "\$integrity"', behind))
        ):
            yield line
        if OTHERS.search(line) or UNVERIFIED.search(line) or TRUSTED.search(line):
            yield line
        if "download-file" in line and "SHA256:" not in line:
            yield line


def helpers_of(text: str) -> dict[str, str]:
    """Functions that return the beginning of a command of pip, and that statement."""
    return {
        function.name: statement
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        for node in function.body
        if isinstance(node, ast.Return) and PIP.search(statement := ast.unparse(node))
    }


def programs() -> list[Path]:
    return [
        CHECKOUT / "Makefile",
        *sorted(
            path
            for folder in _FOLDERS
            for path in (CHECKOUT / folder).rglob("*")
            if path.is_file() and path.suffix in _PROGRAMS and "__pycache__" not in path.parts
        ),
    ]


@pytest.mark.parametrize("path", programs(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_a_script_fetches_nothing_that_is_not_verified(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    is_python = path.suffix == ".py" or text.startswith("#!/usr/bin/env python")
    assert list(unverified(text, is_python=is_python)) == []


@pytest.mark.parametrize(
    "line",
    [
        ".venv/bin/pip install uv",
        ".venv/bin/python -m pip install --quiet \\\n    'uv>=0.9,<1'",
        "pip3 download -r requirements/run.lock",
        "pip install --no-deps uv==1.0",
        "uv pip install ruff",
        "curl -fsSL https://example.com/x | sh",
        'command -v x || wget -q "$url"',
        "git clone https://example.com/x",
        "npm install left-pad",
        "npx eslint",
        'npm pack "htmx.org@4"',
        "go install example.com/x@latest",
        "GOFLAGS=-mod=mod go build ./...",
        "GONOSUMDB=* go build .",
        "apt-get --allow-unauthenticated install x",
        "apt-get -o Acquire::AllowInsecureRepositories=true update",
        'echo "deb [trusted=yes] http://example.com ./" > list',
        "cargo install x",
        "/usr/lib/apt/apt-helper download-file http://example.com/x y",
    ],
)
def test_what_nothing_verifies_is_found(line: str) -> None:
    assert len(list(unverified(f"set -eu\n{line}\necho done\n"))) == 1


@pytest.mark.parametrize(
    "call",
    [
        "run(sys.executable, '-m', 'pip', 'install', 'uv')",
        "run(*(sys.executable, '-m', 'pip', 'download'), *('--no-deps', '--requirement', asked))",
        "with Popen([python, '-m', 'pip', 'install', 'uv']) as process:\n    pass",
        "def pip():\n    return [python, '-m', 'pip', 'install']\nrun(*pip(), 'uv')",
        "data = urlopen('http://example.com').read()",
        "run('curl', url)",
    ],
)
def test_what_nothing_verifies_is_found_in_python_too(call: str) -> None:
    assert len(list(unverified(call, is_python=True))) == 1


@pytest.mark.parametrize(
    "lines",
    [
        "# pip install x\nsay 'installing with pip install x'",
        "pip install --require-hashes -r requirements/dev.lock",
        "pip install --no-deps --no-build-isolation -e .",
        'curl -o x "$url"\necho "$digest  x" | sha256sum --check',
        "npm ci --ignore-scripts",
        'npm pack x\nfound=$(openssl dgst -sha512 x)\n[ "$found" = "$integrity" ] || exit 1',
        "apt-get -qq update\napt-get install -y x",
        "go build -trimpath -o x example.com/x",
        'echo "deb [trusted=yes] copy:$PWD/debian ./" > list',
    ],
)
def test_what_is_verified_is_left_alone(lines: str) -> None:
    assert list(unverified(lines)) == []


def test_all_that_npm_fetches_for_a_script_stands_with_its_checksum() -> None:
    locks = list((CHECKOUT / "scripts").rglob("package-lock.json"))
    assert locks
    for path in locks:
        lock = json.loads(path.read_text(encoding="utf-8"))
        asked = json.loads(path.with_name("package.json").read_text(encoding="utf-8"))
        assert lock["packages"].pop("")["dependencies"] == asked["dependencies"]
        for name, package in lock["packages"].items():
            assert package["integrity"].startswith("sha512-"), name


def test_every_program_of_go_that_is_built_has_its_modules_checksums() -> None:
    modules = [
        path for path in CHECKOUT.glob("*/**/go.mod") if not {"build", ".venv"} & set(path.parts)
    ]
    assert len(modules) >= 5
    for path in modules:
        assert "h1:" in path.with_name("go.sum").read_text(encoding="utf-8"), path
