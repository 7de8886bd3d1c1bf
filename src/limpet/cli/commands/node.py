"""`limpet node`: the nodes of a cluster, as a person sees and changes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from limpet.cli.commands.controller import age
from limpet.cli.options import Format, Words, group
from limpet.cli.output import Output, count, put, put_document, say, show, show_table
from limpet.cli.reach import HERE, ReachOptions, ask, reaching
from limpet.controller.admin.answers import (
    NodeLabelled,
    NodeLine,
    NodeRemoved,
    NodeReplaced,
    NodeSet,
    NodeShown,
    NodesListed,
)
from limpet.picture.nodes import RelayLoad

node = group("Nodes of the cluster.")

_WIDE = ("labels", "relays", "uid")
"""Columns of the wide table alone."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name or uid of the node.")]


@node.command("list")
@reaching
def node_list(
    every: Annotated[bool, typer.Option("--all", help="Show removed nodes too.")] = False,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """The nodes of the cluster, with their segments."""
    found = ask(reach, "node.list", NodesListed).nodes
    nodes = [each for each in found if every or each.state != "removed"]
    nothing = "no node has joined (make a token: limpet token create)"
    show_table(
        NodesListed(nodes=nodes),
        output,
        [_node_row(each) for each in nodes],
        nothing=nothing,
        wide=_WIDE,
    )
    for each in nodes if not output.is_document else ():
        for problem in each.problems:
            say(f"{each.name} ({each.uid}): {problem}")


def _node_row(each: NodeLine) -> dict[str, Any]:
    return {
        "name": each.name,
        "state": each.state,
        "roles": ",".join(each.roles),
        "segments": ",".join(each.segments),
        "behind": ",".join(each.prefixes_behind),
        "communities": ",".join(each.communities),
        "labels": _labels(each.labels),
        "relays": _relayed(each.relay),
        "presence": age(each.presence_at_s),
        "uid": each.uid,
    }


def _relayed(load: RelayLoad | None) -> str:
    """What a relay carries, as it has told."""
    if load is None:
        return ""
    pairs, most = ("?" if each is None else each for each in (load.pairs, load.most_pairs))
    found, rate = f"{pairs} of {most} pairs", load.bytes_per_s
    return found if rate is None else f"{found}, {rate / 1e6:.3g} MB/s"


@node.command("show")
@reaching
def node_show(name: Name, reach: ReachOptions = HERE, output: Format = Output.TABLE) -> None:
    """All that the controller knows of a node."""
    answer = ask(reach, "node.show", NodeShown, node=name)
    if output.is_document:
        put_document(answer, output)
        return
    shown = to_builtins(answer)
    rows = {
        **{key: value for key, value in shown.items() if key not in ("presence", "problems")},
        "labels": _labels(shown["labels"]),
        **{key: age(value) for key, value in shown.items() if key.endswith("_at_s")},
        **{f"presence {key}": value for key, value in (shown["presence"] or {}).items()},
    }
    for key, value in rows.items():
        put(f"{key.removesuffix('_at_s').replace('_', ' ')}: {value_text(value)}")
    for problem in answer.problems:
        say(f"{answer.name}: {problem}")


@node.command("remove")
@reaching
def node_remove(name: Name, reach: ReachOptions = HERE, output: Format = Output.TABLE) -> None:
    """Revoke a node for ever; its segments rest, then go to others."""
    answer = ask(reach, "node.remove", NodeRemoved, node=name)
    show(answer, output, f"{name} ({answer.removed}) removed")


@node.command("replace")
@reaching
def node_replace(
    name: Name,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel", help="Take it back: no node is waited for that takes this one's place."
        ),
    ] = False,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """Give a dead machine's segments to the next that joins under its name."""
    answer = ask(reach, "node.replace", NodeReplaced, node=name, cancel=cancel)
    if cancel:
        words = f"{answer.name} ({answer.uid}) stays as it is"
    else:
        words = f"the next {answer.name} that joins takes {', '.join(answer.segments)}"
    show(answer, output, words)


@node.command("label")
@reaching
def node_label(
    name: Name,
    labels: Annotated[
        list[str],
        typer.Argument(
            metavar="LABELS", help="Labels of the node: KEY=VALUE sets one, KEY- takes one away."
        ),
    ],
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """Change the labels of a node."""
    add = dict(parse_label(each) for each in labels if "=" in each or not each.endswith("-"))
    drop = [each[:-1] for each in labels if "=" not in each and each.endswith("-")]
    answer = ask(reach, "node.label", NodeLabelled, node=name, add=add, drop=drop)
    show(answer, output, _labels(answer.labels) or "no labels")


@node.command("set")
@reaching
def node_set(
    name: Name,
    role: Annotated[
        Words,
        typer.Option(
            "--role",
            help="Role of the node (edge, cloud or relay), in place of all that it has; "
            "can be repeated.",
        ),
    ] = None,
    add_role: Annotated[
        Words,
        typer.Option(
            "--add-role", help="Role that the node gets beside those that it has; can be repeated."
        ),
    ] = None,
    remove_role: Annotated[
        Words,
        typer.Option(
            "--remove-role", help="Role that is taken away from the node; can be repeated."
        ),
    ] = None,
    behind: Annotated[
        Words,
        typer.Option(
            "--behind",
            metavar="PREFIX",
            help="Another network that is reached through the node, in place of all that "
            "it has; can be repeated.",
        ),
    ] = None,
    add_behind: Annotated[
        Words,
        typer.Option(
            "--add-behind",
            metavar="PREFIX",
            help="Network that is reached through the node, beside those that it has; can be "
            "repeated.",
        ),
    ] = None,
    remove_behind: Annotated[
        Words,
        typer.Option(
            "--remove-behind",
            metavar="PREFIX",
            help="Network that is no longer reached through the node; can be repeated.",
        ),
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Make the node a relay although no public address of it is known."
        ),
    ] = False,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """Change the roles of a node, and the networks behind it; all other nodes hear of it."""
    roles = _alterations("role", "roles", role, add_role, remove_role)
    prefixes = _alterations("behind", "behind", behind, add_behind, remove_behind)
    if not (roles or prefixes):
        raise typer.BadParameter(
            "name what to set: --role or --behind, or one of --add-role, --remove-role, "
            "--add-behind and --remove-behind"
        )
    answer = ask(reach, "node.set", NodeSet, node=name, anyway=anyway, **roles, **prefixes)
    roles_now, behind_now = value_text(answer.roles), value_text(answer.prefixes_behind)
    show(answer, output, f"roles: {roles_now}", f"behind: {behind_now}")


def _alterations(
    option: str, key: str, only: Words, add: Words, drop: Words
) -> dict[str, list[str]]:
    """Arguments of the verb; empty: nothing is to change."""
    if only and (add or drop):
        raise typer.BadParameter(
            "it names all that there are to be, so nothing else can be added or taken away",
            param_hint=f"--{option}",
        )
    found = {key: only, f"add_{key}": add, f"remove_{key}": drop}
    return {name: words for name, words in found.items() if words}


# Words


def parse_label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value


def value_text(value: Any) -> str:
    """A document's value as text for a person: a list, a mapping or one value."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return _labels(value) or "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return count(value)
    return "-" if value is None or value == "" else str(value)


def _labels(labels: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value_text(value)}" for key, value in sorted(labels.items()))
