"""`limpet controller|token|node|segment|network|pod`: a person's side of the IP controller."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from limpet.controller.client import call
from limpet.controller.config import DEFAULT_PATH, load_settings
from limpet.ctl.output import Output, put, put_json, put_table, say

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NODE_COLUMNS = ("name", "state", "segments", "communities", "labels", "presence", "uid")
_SEGMENT_COLUMNS = ("segment", "state", "node", "resting_since", "uid")
_POD_COLUMNS = ("node", "namespace", "pod", "network", "ifname", "addresses", "reported")

controller = typer.Typer(
    help="The IP controller; without a command, run it.",
    rich_markup_mode=None,
    invoke_without_command=True,
)
token = typer.Typer(help="Join tokens.", no_args_is_help=True, rich_markup_mode=None)
node = typer.Typer(help="Nodes of the cluster.", no_args_is_help=True, rich_markup_mode=None)
segment = typer.Typer(help="Address segments.", no_args_is_help=True, rich_markup_mode=None)
network = typer.Typer(help="What holds for all nodes.", no_args_is_help=True, rich_markup_mode=None)
pod = typer.Typer(help="Pods of the cluster.", no_args_is_help=True, rich_markup_mode=None)

Config = Annotated[
    Path | None,
    typer.Option("--config", help=f"The controller's configuration (default: {DEFAULT_PATH})."),
]
Format = Annotated[Output, typer.Option("--output", help="How the result is printed.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name or uid of the node.")]


def add_commands(app: typer.Typer) -> None:
    """Everything of this module, under `app`."""
    groups = {
        "controller": controller,
        "token": token,
        "node": node,
        "segment": segment,
        "network": network,
        "pod": pod,
    }
    for name, group in groups.items():
        app.add_typer(group, name=name)


def _ask(config: Path | None, verb: str, **arguments: Any) -> dict[str, Any]:
    return call(load_settings(config).socket, verb, **arguments)


# limpet controller


@controller.callback()
def _run(context: typer.Context, config: Config = None) -> None:
    if context.invoked_subcommand is None:
        from limpet.controller.main import main

        raise typer.Exit(main([] if config is None else ["--config", str(config)]))


@controller.command("backup")
def controller_backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where it goes; must not exist.")],
    config: Config = None,
) -> None:
    """Copy the database, with all keys of the cluster, also while the controller runs."""
    from limpet.controller.backup import back_up

    back_up(load_settings(config), file)
    say(f"limpet: {file} holds the keys of the cluster: keep it where nobody else can read it")


@controller.command("restore")
def controller_restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A back-up.")],
    config: Config = None,
) -> None:
    """Put a back-up in the database's place; the controller must not run."""
    from limpet.controller.backup import restore

    former = restore(load_settings(config), file)
    if former is not None:
        say(f"limpet: what was there is kept as {former}")
    say("limpet: start the controller, then see `limpet controller recovery`")


@controller.command("rotate-key")
def controller_rotate_key(config: Config = None, output: Format = Output.TABLE) -> None:
    """Sign with a new cluster key from now on, and every grant anew."""
    answer = _ask(config, "rotate-key")
    if output is Output.JSON:
        put_json(answer)
    else:
        put(f"{answer['grants_signed']} grants signed with the new key")
    say("limpet: make a back-up now: the ones before do not have the new key")


@controller.command("recovery")
def controller_recovery(
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Grant space that was never used, as after a restore."),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="End it now, and give free what is held back."),
    ] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """What a restored controller waits for; exit code 1 while it does."""
    answer = _ask(config, "recovery", resume=resume, force=force)
    if output is Output.JSON:
        put_json(answer)
    else:
        _put_recovery(answer)
    if answer["recovering"]:
        raise typer.Exit(1)


def _put_recovery(answer: Mapping[str, Any]) -> None:
    if not answer["recovering"]:
        put("no recovery: granting as ever")
    else:
        put(
            f"restored at revision {answer['restored_revision']}, "
            f"{_age(answer['began_at_s'])}: "
            + ("granting unused space only" if answer["granting"] else "granting nothing")
        )
        for each in answer["waiting_for"]:
            put(f"waiting for {each['name']} ({each['uid']})")
        if not answer["granting"]:
            say("`limpet controller recovery --resume` grants space that was never used")
        if answer["needs_force"]:
            say("the margin did not fit into the pod CIDR: only --force ends this")
    if answer["freed"]:
        put(f"{answer['freed']} segments given free")
    if answer["held_back"]:
        put(f"{answer['held_back']} segments held back for nodes that we may not know")


# limpet token


@token.command("create")
def token_create(
    ttl: Annotated[
        str, typer.Option("--ttl", help="How long it lets a node in: 30m, 24h, 7d.")
    ] = "24h",
    role: Annotated[
        list[str] | None, typer.Option("--role", help="edge (default), cloud, relay; several.")
    ] = None,
    community: Annotated[
        list[str] | None, typer.Option("--community", help="That the node is in; several.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="KEY=VALUE of the node; several.")
    ] = None,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """A token that lets one node in, once."""
    answer = _ask(
        config,
        "token.create",
        ttl_s=_duration_s(ttl),
        roles=role or ["edge"],
        communities=community or [],
        labels=dict(map(_label, label or [])),
    )
    if output is Output.JSON:
        put_json(answer)
    else:
        put(answer["token"])


def _duration_s(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no time such as 30m, 24h or 7d", param_hint="--ttl")
    return int(found[1]) * _UNITS_S[found[2]]


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value


# limpet node


@node.command("list")
def node_list(
    every: Annotated[bool, typer.Option("--all", help="Removed ones too.")] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """The nodes of the cluster, with their segments."""
    nodes = _ask(config, "node.list")["nodes"]
    nodes = [each for each in nodes if every or each["state"] != "removed"]
    if output is Output.JSON:
        put_json({"nodes": nodes})
    elif nodes:
        put_table([_node_row(each) for each in nodes], _NODE_COLUMNS)
    else:
        say("no node has joined (make a token: limpet token create)")


def _node_row(each: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **each,
        "segments": ",".join(each["segments"]),
        "communities": ",".join(each["communities"]),
        "labels": _labels(each["labels"]),
        "presence": _age(each["presence_at_s"]),
    }


@node.command("show")
def node_show(name: Name, config: Config = None, output: Format = Output.TABLE) -> None:
    """All that the controller knows of a node."""
    shown = _ask(config, "node.show", node=name)
    if output is Output.JSON:
        put_json(shown)
        return
    rows = {
        **{key: value for key, value in shown.items() if key != "presence"},
        "labels": _labels(shown["labels"]),
        **{key: _age(shown[key]) for key in ("joined_at_s", "presence_at_s", "reported_at_s")},
        **{f"presence {key}": value for key, value in (shown["presence"] or {}).items()},
    }
    for key, value in rows.items():
        put(f"{key.removesuffix('_at_s').replace('_', ' ')}: {_value(value)}")


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return _labels(value) or "-"
    return "-" if value is None or value == "" else str(value)


@node.command("remove")
def node_remove(name: Name, config: Config = None, output: Format = Output.TABLE) -> None:
    """Revoke a node for ever; its segments rest, then go to others."""
    answer = _ask(config, "node.remove", node=name)
    if output is Output.JSON:
        put_json(answer)
    else:
        put(f"{name} ({answer['removed']}) removed")


@node.command("replace")
def node_replace(
    name: Name,
    cancel: Annotated[bool, typer.Option("--cancel", help="Wait for none any more.")] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Give a dead machine's segments to the next that joins under its name."""
    answer = _ask(config, "node.replace", node=name, cancel=cancel)
    if output is Output.JSON:
        put_json(answer)
    elif cancel:
        put(f"{answer['name']} ({answer['uid']}) stays as it is")
    else:
        put(f"the next {answer['name']} that joins takes {', '.join(answer['segments'])}")


@node.command("label")
def node_label(
    name: Name,
    labels: Annotated[
        list[str], typer.Argument(metavar="LABELS", help="KEY=VALUE sets, KEY- takes away.")
    ],
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Change the labels of a node."""
    add = dict(_label(each) for each in labels if "=" in each or not each.endswith("-"))
    drop = [each[:-1] for each in labels if "=" not in each and each.endswith("-")]
    answer = _ask(config, "node.label", node=name, add=add, drop=drop)
    if output is Output.JSON:
        put_json(answer)
    else:
        put(_labels(answer["labels"]) or "no labels")


# limpet segment, network, pod


@segment.command("list")
def segment_list(config: Config = None, output: Format = Output.TABLE) -> None:
    """Which segments are held, and which rest."""
    segments = _ask(config, "segment.list")["segments"]
    if output is Output.JSON:
        put_json({"segments": segments})
    elif segments:
        rows = [{**each, "resting_since": _age(each["resting_since_s"])} for each in segments]
        put_table(rows, _SEGMENT_COLUMNS)
    else:
        say("no segment is granted")


@network.command("show")
def network_show(config: Config = None, output: Format = Output.TABLE) -> None:
    """Address space, VXLAN and other values that hold for all nodes."""
    shown = _ask(config, "network.show")
    if output is Output.JSON:
        put_json(shown)
        return
    for key, value in shown.items():
        put(f"{key.replace('_', ' ')}: {_value(value)}")


@pod.command("list")
def pod_list(
    name: Annotated[str | None, typer.Option("--node", help="Of this node only.")] = None,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Which pod holds which address, as the nodes reported last."""
    found = _ask(config, "pod.list", node=name)
    if output is Output.JSON:
        put_json(found)
        return
    at_s = {each["uid"]: each["reported_at_s"] for each in found["nodes"]}
    rows = [
        {**each, "addresses": ",".join(each["addresses"]), "reported": _age(at_s[each["uid"]])}
        for each in found["pods"]
    ]
    if rows:
        put_table(rows, _POD_COLUMNS)
    else:
        say("no pod was reported")
    for each in found["nodes"]:
        if each["reported_at_s"] is None:
            say(f"{each['node']} ({each['uid']}) has never reported")


def _labels(labels: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _age(at_s: float | None) -> str:
    """When, by the controller's clock, and how long that is ago by this machine's."""
    if at_s is None:
        return ""
    at = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ago_s = max(0, int(time.time() - at_s))
    for unit, length_s in reversed(_UNITS_S.items()):
        if ago_s >= length_s:
            return f"{at} ({ago_s // length_s}{unit} ago)"
    return f"{at} (now)"
