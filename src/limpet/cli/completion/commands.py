"""What there is to complete: every word of every command, and what stands for its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from limpet.cli.usage.tree import CommandSpec, Parameter

NAMES = {
    "path": {"origin": "pod", "target": "pod"},
    "ipam list": {"network": "network"},
    "ipam release": {"what": "pod", "network": "network"},
    "service show": {"name": "service"},
    "policy delete": {"name": "policy"},
    "policy show": {"pod": "pod"},
    "pod label": {"pod": "pod"},
    "pod list": {"name": "node"},
    "node show": {"name": "node"},
    "node remove": {"name": "node"},
    "node replace": {"name": "node"},
    "node label": {"name": "node"},
    "node set": {"name": "node"},
    "community create": {"nodes": "node"},
    "community add": {"name": "community", "nodes": "node"},
    "community remove": {"name": "community", "nodes": "node"},
    "community show": {"name": "community"},
    "token create": {"community": "community"},
    "token remove": {"ids": "token"},
    "lab up": {"topology": "topology"},
    "lab status": {"name": "world"},
    "lab fault": {"name": "world"},
    "lab shell": {"name": "world"},
    "lab down": {"name": "world"},
}
"""Parameters whose values are names that somebody has to be asked for, by command: which ones."""

FILES = "file"


@dataclass(frozen=True, slots=True)
class CompletionWords:
    """What can stand behind the words of a command, each with what it means."""

    commands: Mapping[str, str]
    options: Mapping[str, str]
    values: Mapping[str, str]
    """By option, or by the argument's number (`*`: all further ones): `=` and the words that there
    are, `@` and the kind of names that are asked for, `file`, or nothing."""


def words_by_command(commands: Iterable[CommandSpec]) -> dict[str, CompletionWords]:
    """By the command's words, without `limpet`."""
    found = {each.words: each for each in commands}
    return {
        words: CompletionWords(
            commands={name: found[f"{words} {name}".strip()].summary for name in command.below},
            options={word: _meaning(option) for option in command.options for word in option.words},
            values=_values(command),
        )
        for words, command in found.items()
    }


def _values(command: CommandSpec) -> dict[str, str]:
    found = {
        word: _value(command.words, option)
        for option in command.options
        if option.form
        for word in option.words
    }
    for number, argument in enumerate(command.arguments, 1):
        found[str(number)] = _value(command.words, argument)
        if argument.many:
            found["*"] = _value(command.words, argument)
    return found


def _value(words: str, parameter: Parameter) -> str:
    if kind := NAMES.get(words, {}).get(parameter.name):
        return f"@{kind}"
    if parameter.choices:
        return f"={' '.join(parameter.choices)}"
    return FILES if parameter.is_path else ""


def _meaning(option: Parameter) -> str:
    """One line; the shell cuts what does not fit."""
    return option.help.replace("  [", " [").split("; ")[0]
