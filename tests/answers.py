"""What commands answer with `--output json`, held to the schemas that are published."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from limpet.cli.usage.schemas import ANSWERS, schema_file
from limpet.lab.launch import How, HowToRun, Launcher, Process

SCHEMAS = Path(__file__).parents[1] / "docs" / "reference" / "schemas"
_AS_JSON = (("-o", "json"), ("--output", "json"))
_MANY_DOCUMENTS = {"--follow", "--watch"}


class Judging:
    """A launcher that holds each answer in JSON to its schema, and has another one start all."""

    def __init__(self, other: Launcher) -> None:
        self._other = other

    def start(self, command: Sequence[str], **how: Unpack[How]) -> Process:
        return self._other.start(command, **how)

    def run(
        self, command: Sequence[str], **how: Unpack[HowToRun]
    ) -> subprocess.CompletedProcess[str]:
        done = self._other.run(command, **how)
        words = words_of(command)
        if done.stdout and is_asked_as_json(words):
            check_answer(words, json.loads(done.stdout))
        return done


def words_of(command: Sequence[str]) -> list[str]:
    """What stands behind `limpet`, the last that is the name of the program; empty: none is."""
    words = list(command)
    for at in range(len(words) - 1, -1, -1):
        if Path(words[at]).name == "limpet" and _command_of(words[at + 1 :]):
            return words[at + 1 :]
    return []


def is_asked_as_json(words: Sequence[str]) -> bool:
    """And answered with one document."""
    pairs = set(pairwise(words))
    as_json = "--output=json" in words or pairs.intersection(_AS_JSON)
    return bool(as_json) and not _MANY_DOCUMENTS.intersection(words)


def check_answer(words: Sequence[str], answer: Any) -> str:
    """The command that `words` call, such as `node list`.

    Raises: AssertionError where the answer is not what its published schema says, or has keys that
    the schema does not name.
    """
    command = _command_of(words)
    assert command, f"limpet {' '.join(words)} has no schema"
    problem = best_match(_validator(command).iter_errors(answer))
    assert problem is None, f"limpet {' '.join(words)}: {problem.json_path}: {problem.message}"
    return command


def _command_of(words: Sequence[str]) -> str:
    """The longest that they begin with; empty: none of those that have a schema."""
    beginnings = (" ".join(words[:count]) for count in (3, 2, 1))
    return next((each for each in beginnings if each in ANSWERS), "")


@cache
def _validator(command: str) -> Draft202012Validator:
    published = json.loads((SCHEMAS / schema_file(command)).read_text(encoding="utf-8"))
    return Draft202012Validator(_without_others(published))


def _without_others(schema: Any) -> Any:
    """The schema, of which an object has those keys alone that are named."""
    match schema:
        case {"properties": dict(), **others} if "additionalProperties" not in others:
            schema = {**schema, "additionalProperties": False}
    match schema:
        case dict():
            return {key: _without_others(each) for key, each in schema.items()}
        case list():
            return [_without_others(each) for each in schema]
        case _:
            return schema
