"""What others wrote reaches a person's terminal as text, whatever they wrote."""

from __future__ import annotations

import ast
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st

import limpet
from limpet.agent.policies.said import Applied, PodPolicies, Policies
from limpet.agent.status.node import RecordCheck, Records, Released, Repaired, Status
from limpet.agent.status.paths import PathAnswer, Peers
from limpet.agent.status.services import ServiceAnswer, ServicesAnswer
from limpet.base.text.escaping import escaped
from limpet.cli.main import app, main
from limpet.cli.output import Passage, put_encoded
from limpet.controller.admin import answers
from limpet.dns.status.answers import NameAnswered, NamesStatus
from tests.unit.cli.hostile import (
    CANNOT_BE_SEEN,
    WORST,
    agent,
    answering,
    controller,
    names,
    worst,
)
from tests.unit.cli.test_main import every_command

_AGENT = {
    "status": Status,
    "path": PathAnswer,
    "peers": Peers,
    "ipam.list": Records,
    "ipam.check": RecordCheck,
    "ipam.repair": Repaired,
    "ipam.release": Released,
    "services": ServicesAnswer,
    "service": ServiceAnswer,
    "policy.list": Policies,
    "policy.show": PodPolicies,
    "policy.delete": Applied,
}
_CONTROLLER: dict[str, Any] = {
    "node.list": answers.NodesListed,
    "node.show": answers.NodeShown,
    "node.remove": answers.NodeRemoved,
    "segment.list": answers.SegmentsListed,
    "network.show": answers.NetworkShown,
    "pod.list": {
        "nodes": [
            {"uid": "a", "node": WORST, "reported_at_s": 1.0},
            {"uid": WORST, "node": WORST, "reported_at_s": None},
        ],
        "pods": [
            {
                "uid": "a",
                "node": WORST,
                "namespace": WORST,
                "pod": WORST,
                "network": WORST,
                "ifname": WORST,
                "addresses": [WORST],
                "kept": False,
            }
        ],
    },
    "community.list": answers.CommunitiesListed,
    "community.show": answers.CommunityShown,
    "token.create": answers.TokenCreated,
    "token.list": answers.TokensListed,
    "token.remove": answers.TokensRemoved,
    "policy.list": answers.SignedPolicies,
}
_NAMES = {"status": NamesStatus, "query": NameAnswered}
_AT_THE_AGENT = [
    ("status",),
    ("path", "10.0.0.1", "10.0.0.2"),
    ("peer", "list"),
    ("ipam", "list"),
    ("ipam", "check"),
    ("ipam", "repair"),
    ("service", "list"),
    ("service", "show", "default/web"),
    ("policy", "list"),
    ("policy", "show", "default/web"),
    ("policy", "delete", "default/web"),
    ("pod", "label", "default/web", "a=b"),
    ("dns", "status"),
    ("dns", "query", "web"),
]
_AT_THE_CONTROLLER = [
    ("pod", "list"),
    ("node", "list"),
    ("node", "show", "a"),
    ("node", "remove", "a"),
    ("node", "replace", "a"),
    ("node", "label", "a", "b=c"),
    ("segment", "list"),
    ("network", "show"),
    ("community", "list"),
    ("community", "show", "a"),
    ("community", "remove", "a", "--all"),
    ("token", "create"),
    ("token", "list"),
    ("token", "list", "--output", "wide"),
    ("token", "remove", "a"),
    ("policy", "list", "--cluster"),
    ("controller", "recovery"),
]
_ALL = [
    *(("agent", each) for each in _AT_THE_AGENT),
    *(("controller", each) for each in _AT_THE_CONTROLLER),
]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[dict[str, str]]:
    run, config, of_controller = tmp_path / "run", tmp_path / "agent", tmp_path / "controller"
    run.mkdir()
    config.write_text(f'run_dir = "{run}"\nsocket = "{run}/agent.sock"\nstate_dir = "{tmp_path}"\n')
    of_controller.write_text(f'socket = "{run}/controller.sock"\n')
    with (
        answering(run / "agent.sock", agent(_AGENT)),
        answering(run / "controller.sock", controller(_CONTROLLER)),
        answering(run / "dns.sock", names(_NAMES)),
    ):
        yield {"agent": str(config), "controller": str(of_controller)}


@pytest.mark.parametrize(
    ("asked", "command"),
    _ALL,
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_no_command_lets_others_words_move_a_terminal(
    settings: dict[str, str],
    asked: str,
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([*command, "--config", settings[asked]])
    said = "".join(capsys.readouterr())
    assert "Traceback" not in said
    assert "Usage:" not in said, said
    assert "forged-row" in said, said
    assert not any(line.lstrip().startswith("forged-row") for line in said.splitlines())
    assert [each for each in CANNOT_BE_SEEN if each in said] == []


@pytest.mark.parametrize("command", [("pod", "list"), ("node", "show", "a")])
def test_json_is_exact_and_still_moves_nothing(
    settings: dict[str, str], command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*command, "--config", settings["controller"], "--output", "json"])
    said = capsys.readouterr().out
    answer = _CONTROLLER[".".join(command[:2])]
    assert json.loads(said) == (answer if isinstance(answer, dict) else worst(answer))
    assert said.isascii()
    assert "\x1b" not in said


@pytest.mark.parametrize(("asked", "command"), _ALL)
def test_yaml_says_what_json_says(
    settings: dict[str, str],
    asked: str,
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    documents = {}
    for output, parse in (("json", json.loads), ("yaml", yaml.safe_load)):
        main([*command, "--config", settings[asked], "-o", output])
        said = capsys.readouterr().out
        assert said.isascii()
        assert "\x1b" not in said
        documents[output] = parse(said) if said else "refused"
    assert documents["yaml"] == documents["json"]


@pytest.mark.parametrize(
    ("asked", "command", "column"),
    [
        ("agent", ("peer", "list"), "UID"),
        ("agent", ("ipam", "list"), "CONTAINER ID"),
        ("controller", ("node", "list"), "UID"),
        ("controller", ("segment", "list"), "UID"),
        ("controller", ("pod", "list"), "IFNAME"),
    ],
)
def test_the_wide_table_has_columns_that_the_other_leaves_out(
    settings: dict[str, str],
    asked: str,
    command: tuple[str, ...],
    column: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    heads = {}
    for output in ("table", "wide"):
        main([*command, "--config", settings[asked], "-o", output])
        heads[output] = capsys.readouterr().out.splitlines()[0].split("  ")
    assert column in {each.strip() for each in heads["wide"]}
    assert column not in {each.strip() for each in heads["table"]}


_WITHOUT_RESULT = {
    "agent",
    "completion",
    "connectivity pod",
    "controller",
    "dns ready",
    "dns serve",
    "lab demo",
    "lab shell",
}
"""Commands that run, or hand the terminal to something else."""


def test_every_command_that_has_a_result_prints_it_in_every_form() -> None:
    found = dict(every_command(typer.main.get_command(app), ()))
    lacking = {
        name
        for name, command in found.items()
        if not any({"-o", "--output"} <= set(each.opts) for each in command.params)
    }
    assert lacking == _WITHOUT_RESULT & set(found)


def test_no_command_asks_for_one_form_where_two_are_meant() -> None:
    folder = Path(limpet.__file__).parent / "cli"
    found = [
        str(path)
        for path in folder.rglob("*.py")
        if path.name != "output.py" and "Output.JSON" in path.read_text(encoding="utf-8")
    ]
    assert found == []


def test_what_a_person_gave_by_mistake_is_escaped_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "show", "a", WORST.replace("\0", "").replace("\ud800", "")]) == 2
    assert "\x1b" not in capsys.readouterr().err


@given(st.lists(st.text(), max_size=5))
def test_a_passage_of_another_program_keeps_its_lines_and_nothing_else(parts: list[str]) -> None:
    out = io.StringIO()
    passage = Passage(out)
    for part in parts:
        passage.write(part)
    assert out.getvalue().count("\n") == "".join(parts).count("\n")
    assert escaped(out.getvalue(), keep="\n\t") == out.getvalue()


def test_what_is_for_a_program_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not printable"):
        put_encoded("\x1b")
    assert capsys.readouterr().out == ""


def test_no_command_prints_past_the_place_where_it_is_escaped() -> None:
    """But the demo, which prints what it made itself."""
    allowed = {"output.py", "on_node.py", "main.py", "lab.py"}
    found = [
        f"{path}:{each.lineno}"
        for path in Path(limpet.__file__).parent.joinpath("cli").rglob("*.py")
        if path.name not in allowed
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(each, ast.Attribute) and each.attr in ("stdout", "stderr", "echo", "secho"))
        and ast.unparse(each.value) in ("sys", "typer", "click")
    ]
    assert found == []


@pytest.fixture
def nobody() -> Iterator[Callable[[], None]]:
    """From its call to the test's end this process is a user who may nothing."""
    try:
        yield lambda: os.seteuid(65534)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("asked", "command"), _ALL)
def test_who_may_not_ask_hears_that_and_not_that_nobody_runs(
    settings: dict[str, str],
    asked: str,
    command: tuple[str, ...],
    nobody: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    words = [*command, "--config", str(tmp_path / asked)]
    main(words)  # loads what a user who may not read this interpreter's files cannot load
    _let_nobody_in(tmp_path)
    capsys.readouterr()
    nobody()
    assert main(words) == 1
    said = capsys.readouterr()
    assert "permission denied" in said.err
    assert "is it running" not in said.err
    assert "Traceback" not in said.err


def test_who_may_not_look_for_the_controller_hears_that(
    settings: dict[str, str],
    nobody: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LIMPET_CONTROLLER_CONFIG", settings["controller"])
    main(["node", "list"])
    _let_nobody_in(tmp_path)
    capsys.readouterr()
    nobody()
    assert main(["node", "list"]) == 1
    assert "permission denied" in capsys.readouterr().err


def _let_nobody_in(folder: Path) -> None:
    """Up to the sockets' own folder, but not there."""
    for each in (folder, *folder.parents):
        if each.name.startswith("pytest-") or each == folder:
            each.chmod(0o755)
    (folder / "run").chmod(0o700)
