"""Tests speak to the real parts: nothing stands in for one of ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.unit.test_house import CHECKOUT

REPLACED = {
    "tests/controller/attackers/test_member_rates.py": {"members.rows[id(row)]"},
    "tests/controller/attackers/test_removed_nodes.py": {"cluster.feed.follow"},
    "tests/datapath/tunnel/ipsec/test_ipsec.py": {"IpsecTunnel.in_kernel"},
    "tests/datapath/tunnel/ipsec/test_ipsec_races.py": {
        *("keeper._daemon.put", "keeper._daemon.initiate", "keeper._initiate"),
    },
    "tests/datapath/tunnel/ipsec/test_ipsec_half_open.py": {"codec.name"},  # of constants
    "tests/kube/test_store.py": {"KINDS._by_name", "KINDS._order"},
    "tests/lab/world/test_secrets.py": {"LabController.token"},
    "tests/paths/test_probing.py": {"Ladder.take_due"},
    "tests/relay/test_relay_tls_faults.py": {"relay_tls_server.handshake_rates"},
    "tests/relay/test_relays.py": {"RelayChoice.tick"},
    "tests/unit/base/records/test_records.py": {
        *("codec.crc32", "checksums.crc32", "checksums._times"),
    },
    "tests/unit/base/test_disk.py": {"Disk.fsync"},
    "tests/unit/cli/install/test_packaged_units.py": {"service.name"},  # of constants
    "tests/unit/controller/orchestrator/test_flannel.py": {"vtep_macs.derived_vtep_mac"},
    "tests/unit/timeline/test_recorder.py": {"Disk.fdatasync"},
}
"""What is put into a part of ours that goes on to run: it counts or stands still and hands on, it
fails for once, or it says what takes too long to come to pass. Constants (a time, a bound) need no
row."""
OTHERS = {"time", "sys", "sys.stdin", "sys.stdout", "os", "socket"}
"""The machine's own."""


def sources(*words: str) -> Iterator[tuple[str, str]]:
    """Files of tests and benchmarks that have one of the words."""
    for root in ("tests", "bench"):
        for path in sorted((CHECKOUT / root).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in words):
                yield str(path.relative_to(CHECKOUT)), text


def doubles(source: str) -> Iterator[str]:
    """Values of no type, mocks, and casts of something else to `Any` or to a class of ours."""
    tree = ast.parse(source)
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "limpet"
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="types", names=names):
                yield from (each.name for each in names if each.name == "SimpleNamespace")
            case ast.Attribute(attr="SimpleNamespace"):
                yield "SimpleNamespace"
            case ast.ImportFrom(module="unittest.mock", names=names):
                yield from (each.name for each in names if each.name != "patch")
            case ast.ImportFrom(module="unittest", names=names):
                yield from (each.name for each in names if each.name == "mock")
            case ast.Call(
                func=ast.Name(id="cast") | ast.Attribute(attr="cast"), args=[into, *_]
            ) if named(into) & {*ours, "Any"}:
                yield f"cast to {ast.unparse(into)}"


def named(annotation: ast.expr) -> set[str]:
    """Names in it, also where it is quoted."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    return {each.id for each in ast.walk(annotation) if isinstance(each, ast.Name)}


def replaced(source: str) -> Iterator[str]:
    """What of a part of ours is set to something else, but for constants."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[target, name, _, *_]):
                whose = ast.unparse(target)
                what = ast.unparse(name).strip("'")
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(str(path)), _]):
                whose, _, what = path.rpartition(".")
            case ast.Call(func=ast.Name(id="patch"), args=[ast.Constant(str(path)), *_]):
                whose, _, what = path.rpartition(".")
            case _:
                continue
        if whose not in OTHERS and not what.isupper():
            yield f"{whose}.{what}"


def test_nothing_stands_in_for_a_part_of_ours() -> None:
    texts = sources("SimpleNamespace", "mock", "cast")
    found = {name: sorted(each) for name, text in texts if (each := set(doubles(text)))}

    assert found == {}


def test_what_is_put_into_a_part_of_ours_is_on_the_list() -> None:
    texts = sources("setattr", "patch")
    found = {name: each for name, text in texts if (each := set(replaced(text)))}

    assert found == REPLACED


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from types import SimpleNamespace", ["SimpleNamespace"]),
        ("import types\nx = types.SimpleNamespace(a=1)", ["SimpleNamespace"]),
        ("from unittest.mock import AsyncMock, patch", ["AsyncMock"]),
        ("from unittest import mock", ["mock"]),
        ("from limpet.a import B\ncast(B, x)", ["cast to B"]),
        ("from limpet.a import B\ntyping.cast('B | None', x)", ["cast to 'B | None'"]),
        ("from limpet.a import b as c\ncast(list[c], x)", ["cast to list[c]"]),
        ("cast(Any, x)", ["cast to Any"]),
        ("import ssl\ncast(ssl.SSLSocket, x)", []),
    ],
)
def test_a_double_is_found(source: str, found: list[str]) -> None:
    assert list(doubles(source)) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("monkeypatch.setattr(keeper, 'PolicyPart', Part)", ["keeper.PolicyPart"]),
        ("monkeypatch.setattr(run, 'ask', ask)", ["run.ask"]),
        ("monkeypatch.setattr(run, name, ask)", ["run.name"]),
        ("monkeypatch.setattr('limpet.cli.run.ask', ask)", ["limpet.cli.run.ask"]),
        ("patch('limpet.cli.run.ask', ask)", ["limpet.cli.run.ask"]),
        ("monkeypatch.setattr(server, '_PATIENCE_S', 1.0)", []),
        ("monkeypatch.setattr(time, 'time', now)", []),
        ("patch('socket.getaddrinfo', told)", []),
    ],
)
def test_what_is_put_into_a_part_is_found(source: str, found: list[str]) -> None:
    assert list(replaced(source)) == found
