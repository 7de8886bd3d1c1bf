"""Each folder's `__init__` says truly what it is for, what to call and what it must not import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.unit.test_house import SOURCE, imports_of, modules, names_of

CALLED = re.compile(r"\b(?:call|take|add|make|start with)s?\b((?:`[^`]*`|[^`.:])*)", re.IGNORECASE)
"""What a sentence says to call, up to where it gives reasons."""
REFUSED = re.compile(
    r"\b(?:must not import|imports nothing of)\b((?:`[^`]*`|[^`.:])*)", re.IGNORECASE
)
"""The same of what must not be imported; behind `but` stands what may be nevertheless."""


def folders() -> list[str]:
    """Every package by its dotted name."""
    found = (path.parent.relative_to(SOURCE.parent) for path in SOURCE.rglob("__init__.py"))
    return sorted(".".join(path.parts) for path in found)


def face_of(folder: str) -> str:
    return " ".join((ast.get_docstring(modules()[folder]) or "").split())


def named_in(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def is_within(name: str, folders: set[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in folders)


@cache
def imported_by(module: str) -> set[str]:
    """Modules of ours that it imports; not the folder that `from FOLDER import MODULE` names."""
    found = imports_of(module)
    return {each for each in found if not any(other.startswith(f"{each}.") for other in found)}


def meant(name: str, folder: str) -> str:
    """The module that a face names: the nearest, looked for from its own folder upwards."""
    parts = folder.split(".")
    for count in range(len(parts), -1, -1):
        if (found := ".".join([*parts[:count], name])) in modules():
            return found
    raise AssertionError(f"{folder}: there is no module `{name}`")


def holds(folder: str, name: str) -> bool:
    """Whether it has a module of that name, or something in one, named with its module or alone."""
    module, _, rest = f"{folder}.{name}".rpartition(".")
    if f"{folder}.{name}" in modules():
        return True
    files = {each for each in modules() if is_within(each, {folder})}
    return any(rest in defined(each) for each in (files if module == folder else files & {module}))


def defined(module: str) -> set[str]:
    """Its classes, functions and constants."""
    found = set()
    for node in modules()[module].body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found |= names_of(node)
    return found


@cache
def refused(folder: str) -> list[tuple[set[str], set[str]]]:
    return list(refusals(face_of(folder), folder))


def refusals(face: str, folder: str) -> Iterator[tuple[set[str], set[str]]]:
    """What each sentence of a face forbids, and what of that it allows."""
    for sentence in REFUSED.findall(face):
        forbidden, _, allowed = sentence.partition(" but ")
        names = {meant(name, folder) for name in named_in(forbidden)}
        if re.search(r"\bLimpet\b", forbidden):
            names.add("limpet")
        yield names, {meant(name, folder) for name in named_in(allowed)}


def test_a_face_says_what_to_call_and_it_is_there() -> None:
    lacking = [
        folder
        for folder in folders()
        if not any(
            holds(folder, name)
            for text in CALLED.findall(face_of(folder))
            for name in named_in(text)
        )
    ]
    assert not lacking, f"their __init__ names nothing to call: {lacking}"


def test_a_face_says_what_must_not_be_imported() -> None:
    lacking = [
        folder for folder in folders() if not any(forbidden for forbidden, _ in refused(folder))
    ]
    assert not lacking, f"their __init__ says nothing of imports: {lacking}"


def test_what_a_face_says_must_not_be_imported_is_not() -> None:
    """Wherever the import stands, and whatever it is for. The root's face is about its `__init__`
    alone: all else is below it."""
    found = {
        f"{folder}: {module} imports {other}"
        for folder in folders()
        for forbidden, allowed in refused(folder)
        for module in inside(folder)
        for other in imported_by(module) - inside(folder)
        if is_within(other, forbidden) and not is_within(other, allowed)
    }
    assert not found, "\n".join(sorted(found))


def inside(folder: str) -> set[str]:
    return (
        {each for each in modules() if is_within(each, {folder})}
        if folder != "limpet"
        else {folder}
    )


@pytest.mark.parametrize(
    ("said", "forbidden", "allowed"),
    [
        ("Must not import `ladder`.", {"limpet.paths.ladder"}, set()),
        ("Must not import `ladder`: no `probe` is made.", {"limpet.paths.ladder"}, set()),
        ("Imports nothing of Limpet but `base`.", {"limpet"}, {"limpet.base"}),
    ],
)
def test_what_a_sentence_forbids(said: str, forbidden: set[str], allowed: set[str]) -> None:
    assert list(refusals(said, "limpet.paths.probe")) == [(forbidden, allowed)]
