"""The command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import __version__
from limpet.cli.main import app, main
from limpet.cli.usage.tree import all_commands

DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "commands"
OTHERS_OPTIONS = {
    *("--only", "--check"),  # of this checkout's own programs
    *("--set", "--ip-masq", "--kube-subnet-mgr", "--pod-network-cidr", "--allocate-node-cidrs"),
    *("--publish", "--ip", "--mac-address"),
}
"""Of other programs, which pages name too."""
COMMANDS = [
    ["status"],
    ["ipam", "list"],
    ["ipam", "check"],
    ["ipam", "repair"],
    ["ipam", "release", "10.0.0.1"],
    ["path", "10.0.0.1", "10.0.1.1"],
    ["peer", "list"],
    ["doctor"],
    ["uninstall"],
]


def every_command(group: Any, words: tuple[str, ...] = ("limpet",)) -> Iterator[tuple[str, Any]]:
    """`limpet ipam list` and so on, with what typer made of each."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


def documented() -> dict[str, tuple[Path, str]]:
    """`limpet ipam list` and so on: the page that has a section of that name, and the section."""
    return {
        part.split("\n")[0]: (page, part)
        for page in sorted(DOCUMENTATION.glob("*.md"))
        for part in page.read_text().split("\n## ")[1:]
    }


def test_every_command_has_a_section_that_leads_to_all_of_its_options() -> None:
    """What the options are stands in docs/reference/commands.md, which is made of the commands."""
    sections = documented()

    for name, _ in every_command(typer.main.get_command(app)):
        assert name in sections, f"no page of docs/commands has a section {name!r}"
        page, text = sections[name]
        link = f"(../reference/commands.md#{name.replace(' ', '-')})"
        assert link in text, f"{page.name}: {name} has no link {link}"


def test_no_page_is_about_an_option_that_no_command_has() -> None:
    found = {
        word
        for command in all_commands(typer.main.get_command(app))
        for each in command.options
        for word in (*each.words, *each.negations)
    }
    pages = sorted(DOCUMENTATION.parent.rglob("*.md"))
    named = re.compile(r"`limpet [^`]*`|`--[a-z][a-z-]*[^`]*`")
    for page in (each for each in pages if each.parent.name not in ("decisions", "reference")):
        for code in named.findall(page.read_text()):
            ours = code.partition(" -- ")[0]
            wrong = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", ours)) - found - OTHERS_OPTIONS
            assert not wrong, f"{page.name}: {code}"


def test_no_section_is_about_a_command_that_is_not_there_and_the_list_has_all() -> None:
    sections = documented()
    found = dict(every_command(typer.main.get_command(app)))
    index = (DOCUMENTATION / "index.md").read_text()

    assert set(sections) == set(found)
    for name, (page, _) in sections.items():
        assert f"[`{name}`]({page.name}#{name.replace(' ', '-')})" in index


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"limpet {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["ipam", "bogus"],
        ["status", "--output", "xml"],
        ["ipam", "release"],
        ["ipam", "release", "neither/an/address"],
        ["install", "--bogus"],
        ["netcheck", "--relay", "x:y:z"],
        ["ui", "--listen", "foo"],
        ["ui", "--certificate", "page.pem"],
        ["join", "--token", "t", "--token-file", "-"],
        ["join", "--name", "n1"],
        ["bundle", "released.tar", "site.tar"],
        ["trace", "10.0.0.1", "10.0.1.1", "--port", "80", "--protocol", "sctp"],
    ],
)
def test_bad_usage_is_exit_code_2_with_nothing_on_stdout(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert "limpet: limpet" not in said.err


@pytest.mark.parametrize("arguments", COMMANDS)
@pytest.mark.parametrize(
    "text", ["segments = 7\n", 'segments = ["10.244.7.0/33"]\n', "][", "bogus = 1\n", None]
)
def test_a_bad_configuration_is_one_line_that_names_the_file(
    arguments: list[str],
    text: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "agent.toml"
    if text is not None:
        config.write_text(text)

    assert main([*arguments, "--config", str(config)]) == 1

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert str(config) in said.err


@settings(deadline=None)
@given(text=st.text(alphabet="abc019./:=[]{}\"'\n\u00e9 ", max_size=40))
def test_whatever_a_configuration_holds_there_is_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    config = tmp_path_factory.mktemp("config") / "agent.toml"
    config.write_text(text + f'\nsocket = "{config.parent}/none.sock"\n')

    assert main(["status", "--config", str(config)]) == 1


@pytest.mark.parametrize("command", ["status", "service list"])
def test_where_there_is_a_kubeconfig_but_no_agent_a_person_hears_of_other_nodes(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f'socket = "{tmp_path}/none.sock"\n')
    kubeconfig = tmp_path / "kubeconfig"
    arguments = [*command.split(), "--config", str(config)]
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert main(arguments) == 1
    assert "--node" not in capsys.readouterr().err
    kubeconfig.touch()
    assert main(arguments) == 1
    assert "--node NAME asks a node" in capsys.readouterr().err


def test_without_an_agent_the_records_themselves_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "networks" / "cbr0"
    folder.mkdir(parents=True)
    (folder / "10.244.7.9").write_text("c0ffee\r\neth0")
    (folder / "10.244.7.8_default_web-0").write_text("")
    config = tmp_path / "agent.toml"
    config.write_text(f'data_dir = "{tmp_path}/networks"\nsocket = "{tmp_path}/none.sock"\n')

    assert main(["ipam", "list", "--config", str(config), "--output", "json"]) == 0

    said = capsys.readouterr()
    assert "no agent answers" in said.err
    records = {r["address"]: r for r in json.loads(said.out)["records"]}
    assert records["10.244.7.9"]["state"] == "live"
    assert records["10.244.7.9"]["container_id"] == "c0ffee"
    assert records["10.244.7.8"]["state"] == "bound"
    assert records["10.244.7.8"]["pod"] == "web-0"

    assert main(["ipam", "list", "--network", "cbr", "--config", str(config)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert (
        "no network cbr has records on this node (there are cbr0). Did you mean cbr0?" in said.err
    )
    assert main(["ipam", "list", "--network", "cbr0", "--config", str(config)]) == 0


def test_damage_is_found_without_an_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "networks" / "cbr0"
    folder.mkdir(parents=True)
    (folder / "something else").write_text("")
    config = tmp_path / "agent.toml"
    config.write_text(f'data_dir = "{tmp_path}/networks"\nsocket = "{tmp_path}/none.sock"\n')

    assert main(["ipam", "check", "--config", str(config)]) == 1
    assert "something else" in capsys.readouterr().out


def test_the_agent_starts_without_the_command_line() -> None:
    """The libraries of the command line cost a node's pods a quarter of a second at boot."""
    script = (
        "import sys; sys.argv = ['limpet', 'agent', '--config', '/nowhere']\n"
        "from limpet.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({name for name in sys.modules if name.startswith(('typer', 'limpet.cli'))}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "line",
    [
        "netcheck --controller foo:99999",
        "netcheck --relay foo:99999",
        "connectivity test --outside nonsense",
        "install --dry-run --kubeconfig x",
        "install --dry-run --kubernetes",
        "install --dry-run --take-over foo",
        "install --dry-run --take-over flannel --no-start",
        "install --dry-run --network-name a/b",
        "install --dry-run --segment 10.0.0.0/24 --token x",
        "install --dry-run --controller 192.0.2.1",
    ],
)
def test_a_command_line_that_contradicts_itself_is_exit_code_2(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f'state_dir = "{tmp_path}"\nrun_dir = "{tmp_path}"\n')
    assert main([*line.split(), "--config", str(config)]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("topic", ["install", "doctor", "ipam list", "agent-silent"])
def test_documentation_is_shown_however_wide(
    topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", topic]) == 0
    narrow = capsys.readouterr().out
    assert main(["help", topic, "-o", "wide"]) == 0
    assert capsys.readouterr().out == narrow != ""
