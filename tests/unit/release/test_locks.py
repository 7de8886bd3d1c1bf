"""What is installed is known to the last byte: by version, and by checksum."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).parents[3]
LOCKS = CHECKOUT / "requirements"
IMAGES, BUNDLES = (
    sorted((CHECKOUT / "deploy" / each).glob("*.lock")) for each in ("image", "bundle")
)
_PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
_LOCK = (CHECKOUT / "scripts" / "lock").read_text(encoding="utf-8")
_RUN = _PROJECT["project"]["dependencies"]
_MORE = _PROJECT["project"]["optional-dependencies"]
_ASKED = {
    "run": _RUN,
    "build": [*_RUN, *_MORE["build"], *_PROJECT["build-system"]["requires"]],
    "dev": [*_RUN, *_MORE["build"], *_MORE["dev"]],
    "docs": [*_RUN, *_MORE["docs"]],
    "fuzz": [*_RUN, *_MORE["fuzz"]],
    "ui-tests": [*_RUN, *_MORE["dev"], *_MORE["ui-tests"]],
    "locking": re.findall(r"^echo '(\S+)' \|", _LOCK, re.MULTILINE),
}
"""What each lock is made of, by `scripts/lock`."""
DEB = re.compile(
    r"deb (?P<suite>[a-z]+ )?(?:main|security) pool/\S+/(?P<package>[\w.%+-]+)_[^_/ ]+"
    r"_(?:amd64|arm64|all)\.deb [0-9a-f]{64}"
)
PIP = re.compile(r"pip [\w.-]+==\S+ [0-9a-f]{64}")
_ELSEWHERE = {"colorama"}
"""Of Windows alone."""


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Version and checksums by name of the package."""
    entries = re.split(r"\n(?=\S)", (LOCKS / f"{name}.lock").read_text(encoding="utf-8").strip())
    found: dict[str, tuple[str, list[str]]] = {}
    for entry in entries:
        match = re.fullmatch(
            r"([\w.-]+)==(\S+)(?: ; .*?)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)", entry
        )
        assert match, f"{name}.lock: {entry[:200]!r} is no version with checksums"
        package, version, hashes = match.groups()
        found[canonicalize_name(package)] = (version, re.findall("[0-9a-f]{64}", hashes))
    return found


def test_every_lock_is_one_of_these() -> None:
    assert {path.name for path in LOCKS.iterdir()} == {f"{name}.lock" for name in _ASKED}
    assert all(_ASKED.values())


def test_what_plain_pip_takes_is_of_a_major_version_that_is_known() -> None:
    """docs/decisions/packages.md says why two have no upper bound."""
    asked = {each.name: each.specifier for each in map(Requirement, _RUN)}

    unbounded = {
        name
        for name, specifier in asked.items()
        if not any(each.operator == "<" for each in specifier)
    }

    assert unbounded == {"cryptography", "structlog"}
    for name, specifier in asked.items():
        assert specifier.contains(locked("run")[canonicalize_name(name)][0]), name


@pytest.mark.parametrize("name", _ASKED)
def test_all_that_is_asked_for_is_locked_with_checksums(name: str) -> None:
    have = locked(name)
    for asked in map(Requirement, _ASKED[name]):
        version, _ = have.get(canonicalize_name(asked.name), ("", []))
        assert asked.specifier.contains(version), f"{asked}: {version or 'not there'} (make lock)"


@pytest.mark.parametrize("name", ["run", "build"])
def test_what_is_tested_is_what_is_shipped(name: str) -> None:
    assert locked(name).items() <= locked("dev").items()


@pytest.mark.parametrize("name", ["docs", "fuzz", "ui-tests"])
def test_what_locks_have_in_common_has_one_version(name: str) -> None:
    here, of_dev = locked(name), locked("dev")
    common = here.keys() & of_dev.keys()
    assert {each: here[each] for each in common} == {each: of_dev[each] for each in common}


@pytest.mark.parametrize("lock", [*IMAGES, *BUNDLES], ids=lambda path: path.parent.name)
def test_every_line_of_what_is_shipped_names_a_file_and_its_checksum(lock: Path) -> None:
    entries = [
        line
        for line in lock.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    debs = [found for each in entries if (found := DEB.fullmatch(each))]
    others = [each for each in entries if not DEB.fullmatch(each)]
    assert [each for each in others if not PIP.fullmatch(each)] == []
    assert len(debs) > 10
    of_suites = [(each["suite"], each["package"]) for each in debs]
    assert len(set(of_suites)) == len(of_suites)


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_has_all_the_files_that_were_locked(image: Path) -> None:
    have, found = locked("run"), set()
    for line in image.read_text(encoding="utf-8").splitlines():
        match line.split():
            case ["pip", requirement, digest]:
                package, _, version = requirement.partition("==")
                assert have[canonicalize_name(package)][0] == version, (
                    "scripts/build-image --update"
                )
                assert digest in have[canonicalize_name(package)][1]
                found.add(canonicalize_name(package))
    assert found == have.keys() - _ELSEWHERE, "scripts/build-image --update"


def test_no_lock_says_where_it_was_made() -> None:
    for path in LOCKS.iterdir():
        assert "://" not in path.read_text(encoding="utf-8")
