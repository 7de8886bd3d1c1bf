"""What commands answer has a schema, and the schemas in the documentation are those."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import typer
from jsonschema import Draft202012Validator

from limpet.cli import answers
from limpet.cli.main import app
from limpet.cli.usage.figures import metrics_page
from limpet.cli.usage.options import commands_page
from limpet.cli.usage.reference import exit_codes_page, json_page, schemas
from limpet.cli.usage.schemas import ANSWERS, schema_of
from limpet.cli.usage.tree import all_commands
from limpet.lab.launch import ByExec
from limpet.lab.measure import shown
from tests.answers import Judging
from tests.lab.world.test_commands import ASKED_ELSEWHERE

CHECKOUT = Path(__file__).resolve().parents[3]
REFERENCE = CHECKOUT / "docs" / "reference"


def test_every_command_with_a_result_has_a_schema() -> None:
    commands = all_commands(typer.main.get_command(app))
    told = {each.words for each in commands if any("-o" in one.words for one in each.options)}
    assert set(ANSWERS) == told


@pytest.mark.parametrize("module", [answers, shown], ids=["cli", "lab"])
def test_what_is_described_is_what_answers_are_made_of(module: ModuleType) -> None:
    """A dict that is sent instead could have other keys than its schema, and nothing would tell."""
    texts = (path.read_text(encoding="utf-8") for path in (CHECKOUT / "src").rglob("*.py"))
    users = "".join(text for text in texts if f"from {module.__name__} import" in text)
    text = users + Path(str(module.__file__)).read_text(encoding="utf-8")
    described = {
        name
        for name, each in vars(module).items()
        if isinstance(each, type)
        and each.__module__ == module.__name__
        and not each.__subclasses__()
    }
    made = set(re.findall(r"(?<!class )\b(\w+)(?:\.of)?\(", text))
    assert described - made == set()


@pytest.mark.parametrize("words", ANSWERS)
def test_a_schema_is_one(words: str) -> None:
    Draft202012Validator.check_schema(schema_of(words))


@pytest.mark.parametrize(("words", "file"), ASKED_ELSEWHERE.items())
def test_an_answer_that_the_lab_does_not_give_is_asked_for_where_it_is_said(
    words: str, file: str
) -> None:
    """What of it is told as JSON is held to its schema by whoever starts it: tests/answers.py."""
    text = (CHECKOUT / file).read_text(encoding="utf-8")
    typed = ", ".join(f'"{each}"' for each in words.split())
    assert typed in text
    assert "json" in text


@pytest.mark.parametrize(
    ("answer", "words", "wrong"),
    [
        ('{"released": ["10.0.0.9"]}', "-o json", ""),
        ('{"released": ["10.0.0.9"], "more": 1}', "-o json", "'more' was unexpected"),
        ('{"released": [9]}', "--output json", "9 is not of type 'string'"),
        ("{}", "--output=json", "'released' is a required property"),
        ("released 10.0.0.9", "", ""),
        ("released: 9", "-o yaml", ""),
        ("", "-o json", ""),
    ],
)
def test_an_answer_that_its_schema_does_not_describe_fails_the_test_that_asks_for_it(
    answer: str, words: str, wrong: str
) -> None:
    """It is a shell that answers here, under the name of `limpet`."""
    command = ["sh", "-c", f"printf %s '{answer}'", "limpet", *f"ipam release x {words}".split()]
    run = partial(Judging(ByExec()).run, command)
    if not wrong:
        assert run().stdout == answer
        return
    with pytest.raises(AssertionError, match=wrong):
        run()


def test_the_documentation_has_the_schemas_of_now() -> None:
    """`scripts/write-reference` writes them."""
    written = {each.name: each.read_text() for each in (REFERENCE / "schemas").iterdir()}
    assert written == schemas()
    assert json.loads(written["status.json"])["title"] == "limpet status"
    assert (REFERENCE / "json.md").read_text(encoding="utf-8") == json_page()


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("commands.md", commands_page),
        ("exit-codes.md", exit_codes_page),
        ("metrics.md", metrics_page),
    ],
)
def test_a_page_that_is_made_of_the_code_was_made_of_that_of_now(
    name: str, page: Callable[[], str]
) -> None:
    """`scripts/write-reference` writes them."""
    assert (REFERENCE / name).read_text(encoding="utf-8") == page()
