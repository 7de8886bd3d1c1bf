"""What a command and a noun are made of, so that all of them explain themselves alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from limpet.base.errors import CommandLineError
from limpet.base.text.nearest import did_you_mean
from limpet.cli.usage.examples import EXAMPLES

if TYPE_CHECKING:  # for annotations alone: a private part of typer's, which may move
    from typer._click.core import Context, Parameter
    from typer._click.formatting import HelpFormatter

_WHOM = frozenset({"config", "node", "kubeconfig", "context", "namespace"})
"""Options by which many commands are told whom they ask."""
_FORMS = {
    "<path>": "FILE",
    "<int>": "NUMBER",
    "<int range>": "NUMBER",
    "<float>": "NUMBER",
    "<float range>": "NUMBER",
}
_CHOICE = re.compile(r"<([^<> ]*\|[^<> ]*)>")
_NOT_ONE_OF = re.compile(r"'(?P<given>[^']*)' is not one of ")
_TOO_MANY = "Got unexpected extra argument"
_SUMMARY_END = re.compile(r"[;,] exit code |\. ")


class Command(TyperCommand):
    """Says what it takes, whom it asks, and shows how it is used."""

    def make_context(self, *arguments: Any, **named: Any) -> Context:
        try:
            return super().make_context(*arguments, **named)
        except Exception as error:
            _suggest(error)
            raise

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        _format_parameters(self, ctx, formatter)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        _format_examples(ctx, formatter)


class Noun(TyperGroup):
    """Commands under one noun."""

    def make_context(self, *arguments: Any, **named: Any) -> Context:
        try:
            return super().make_context(*arguments, **named)
        except Exception as error:
            _suggest(error)
            raise

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        _format_parameters(self, ctx, formatter)
        for heading, names in self.headings(ctx):
            rows = [(name, summary(self.commands[name])) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def headings(self, ctx: Context) -> Sequence[tuple[str, Sequence[str]]]:
        """Under which heading which commands are listed."""
        return [("Commands", [*self.list_commands(ctx)])]

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        _format_examples(ctx, formatter)


class NounApp(typer.Typer):
    """Commands under one noun, each of which is a `Command`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(cls=Noun, rich_markup_mode=None, **arguments)

    def command(self, name: str | None = None, **arguments: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Command, **arguments})


def check_options_stand_behind(context: Context) -> None:
    """What is said between a noun and its command would be the noun's alone, and not heard.

    Raises: CommandLineError.
    """
    for option in context.command.params if context.invoked_subcommand else ():
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            said = f"{context.command_path} {option.opts[0]}"
            raise CommandLineError(
                f"{said}: say it behind the command, as `{context.command_path} "
                f"{context.invoked_subcommand} … {option.opts[0]} …`"
            )


def summary(command: Any) -> str:
    """The first sentence of its help, without what its exit code means."""
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return _SUMMARY_END.split(text, maxsplit=1)[0].rstrip(".") + "."


def _format_parameters(command: Any, ctx: Context, formatter: HelpFormatter) -> None:
    arguments: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    whom: list[tuple[str, str]] = []
    for each in command.get_params(ctx):
        record = each.get_help_record(ctx)
        if record is None:
            continue
        if each.param_type_name == "argument":
            arguments.append(record)
        else:
            row = (form(record[0], each), record[1])
            (whom if each.name in _WHOM else options).append(row)
    sections = (("Arguments", arguments), ("Options", options), ("Whom it asks", whom))
    for heading, rows in sections:
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def form(words: str, option: Parameter) -> str:
    """What an option takes, in capitals, as in the documentation."""
    for form, name in _FORMS.items():
        words = words.replace(form, name)
    name = max(option.opts, key=len).lstrip("-").rpartition("-")[2].upper()
    return _CHOICE.sub(r"\1", words.replace("<str>", name))


def _format_examples(ctx: Context, formatter: HelpFormatter) -> None:
    rows = EXAMPLES.get(ctx.command_path.removeprefix("limpet").strip(), ())
    if rows:
        with formatter.section("Examples"):
            for example, meaning in rows:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
                formatter.indent()
                formatter.write_text(meaning)
                formatter.dedent()


def _parameters(error: Exception) -> Sequence[Parameter]:
    """Parameters of the command that was called wrongly."""
    return getattr(getattr(getattr(error, "ctx", None), "command", None), "params", ())


def _suggest(error: Exception) -> None:
    """Puts the nearest option or value into what typer says of a wrong one."""
    possible = getattr(error, "possibilities", None)
    if possible:
        setattr(error, "possibilities", None)  # noqa: B010
        words = " or ".join(possible)
        setattr(error, "message", f"{getattr(error, 'message', '')}. Did you mean {words}?")  # noqa: B010
        return
    said = getattr(error, "message", "")
    options = [name for each in _parameters(error) for name in getattr(each, "opts", ())]
    if said.startswith(_TOO_MANY) and "--name" in options:
        setattr(error, "message", f"{said}. A name is given by --name.")  # noqa: B010
    choices = getattr(getattr(getattr(error, "param", None), "type", None), "choices", ())
    found = _NOT_ONE_OF.search(said)
    if found is not None:
        known = [str(getattr(each, "value", each)) for each in choices]
        setattr(error, "message", said + did_you_mean(found["given"], known))  # noqa: B010
