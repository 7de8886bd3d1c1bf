"""All commands as values: what completion, man pages and the reference are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from limpet.cli.usage.commands import form, summary


@dataclass(frozen=True, slots=True)
class Parameter:
    """An option, or an argument: then without words."""

    name: str
    words: tuple[str, ...]
    form: str
    """What it takes, in capitals; empty: nothing."""
    help: str
    choices: tuple[str, ...] = ()
    is_path: bool = False
    many: bool = False
    negations: tuple[str, ...] = ()
    """Words that say the opposite."""


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command, or a noun: then it has `below`."""

    words: str
    """Without `limpet`."""
    summary: str
    help: str
    parameters: tuple[Parameter, ...]
    below: tuple[str, ...] = ()

    @property
    def options(self) -> list[Parameter]:
        return [each for each in self.parameters if each.words]

    @property
    def arguments(self) -> list[Parameter]:
        return [each for each in self.parameters if not each.words]


def all_commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[CommandSpec]:
    """The command, as typer made it, and all below it; hidden ones are left out."""
    below = {
        name: each for name, each in getattr(command, "commands", {}).items() if not each.hidden
    }
    context = typer.Context(command, info_name=" ".join(("limpet", *words)))
    yield CommandSpec(
        words=" ".join(words),
        summary=summary(command),
        help=command.help or "",
        parameters=tuple(_parameter(each, context) for each in command.get_params(context)),
        below=tuple(below),
    )
    for name, each in below.items():
        yield from all_commands(each, (*words, name))


def _parameter(parameter: Any, context: Any) -> Parameter:
    is_option = parameter.param_type_name == "option"
    takes = not (is_option and (parameter.is_flag or parameter.count))
    choices = getattr(parameter.type, "choices", ()) if takes else ()
    return Parameter(
        name=parameter.name or "",
        words=tuple(parameter.opts) if is_option else (),
        form=form(parameter.make_metavar(ctx=context), parameter) if takes else "",
        help=(parameter.get_help_record(context) or ("", ""))[1],
        choices=tuple(str(getattr(each, "value", each)) for each in choices),
        is_path=parameter.type.name == "path",
        many=parameter.nargs == -1 or bool(getattr(parameter, "multiple", False)),
        negations=tuple(parameter.secondary_opts) if is_option else (),
    )
