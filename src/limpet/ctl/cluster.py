"""`limpet token|node|community|segment|network|pod`: a person's side of the IP controller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from limpet.ctl.community import community
from limpet.ctl.controller import UNITS_S, Config, Format, age, ask, controller
from limpet.ctl.output import Output, put, put_json, put_table, say
from limpet.model.cluster import DefaultCommunity

_NODE_COLUMNS = (
    "name",
    "state",
    "roles",
    "segments",
    "communities",
    "labels",
    "presence",
    "uid",
)
_SEGMENT_COLUMNS = ("segment", "state", "node", "resting_since", "uid")
_POD_COLUMNS = ("node", "namespace", "pod", "network", "ifname", "addresses", "reported")

token = typer.Typer(help="Join tokens.", no_args_is_help=True, rich_markup_mode=None)
node = typer.Typer(help="Nodes of the cluster.", no_args_is_help=True, rich_markup_mode=None)
segment = typer.Typer(help="Address segments.", no_args_is_help=True, rich_markup_mode=None)
network = typer.Typer(help="What holds for all nodes.", no_args_is_help=True, rich_markup_mode=None)
pod = typer.Typer(help="Pods of the cluster.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name or uid of the node.")]


def add_commands(app: typer.Typer) -> None:
    """Everything of this module, under `app`."""
    groups = {
        "controller": controller,
        "token": token,
        "node": node,
        "community": community,
        "segment": segment,
        "network": network,
        "pod": pod,
    }
    for name, group in groups.items():
        app.add_typer(group, name=name)


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
    answer = ask(
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
    return int(found[1]) * UNITS_S[found[2]]


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
    nodes = ask(config, "node.list")["nodes"]
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
        "roles": ",".join(each["roles"]),
        "segments": ",".join(each["segments"]),
        "communities": ",".join(each["communities"]),
        "labels": _labels(each["labels"]),
        "presence": age(each["presence_at_s"]),
    }


@node.command("show")
def node_show(name: Name, config: Config = None, output: Format = Output.TABLE) -> None:
    """All that the controller knows of a node."""
    shown = ask(config, "node.show", node=name)
    if output is Output.JSON:
        put_json(shown)
        return
    rows = {
        **{key: value for key, value in shown.items() if key != "presence"},
        "labels": _labels(shown["labels"]),
        **{key: age(shown[key]) for key in ("joined_at_s", "presence_at_s", "reported_at_s")},
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
    answer = ask(config, "node.remove", node=name)
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
    answer = ask(config, "node.replace", node=name, cancel=cancel)
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
    answer = ask(config, "node.label", node=name, add=add, drop=drop)
    if output is Output.JSON:
        put_json(answer)
    else:
        put(_labels(answer["labels"]) or "no labels")


@node.command("set")
def node_set(
    name: Name,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="edge, cloud, relay: in place of all it has; several."),
    ] = None,
    add_role: Annotated[
        list[str] | None, typer.Option("--add-role", help="Beside those it has; several.")
    ] = None,
    remove_role: Annotated[
        list[str] | None, typer.Option("--remove-role", help="Taken away; several.")
    ] = None,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Change the roles of a node; all other nodes hear of it."""
    if role and (add_role or remove_role):
        raise typer.BadParameter(
            "it names all roles, so nothing else can be added or taken away", param_hint="--role"
        )
    if not (role or add_role or remove_role):
        raise typer.BadParameter("name what to set: --role, --add-role or --remove-role")
    answer = ask(
        config,
        "node.set",
        node=name,
        roles=role or None,
        add_roles=add_role or [],
        remove_roles=remove_role or [],
    )
    if output is Output.JSON:
        put_json(answer)
    else:
        put(",".join(answer["roles"]))


# limpet segment, network, pod


@segment.command("list")
def segment_list(config: Config = None, output: Format = Output.TABLE) -> None:
    """Which segments are held, and which rest."""
    segments = ask(config, "segment.list")["segments"]
    if output is Output.JSON:
        put_json({"segments": segments})
    elif segments:
        rows = [{**each, "resting_since": age(each["resting_since_s"])} for each in segments]
        put_table(rows, _SEGMENT_COLUMNS)
    else:
        say("no segment is granted")


@network.command("show")
def network_show(config: Config = None, output: Format = Output.TABLE) -> None:
    """Address space, VXLAN and other values that hold for all nodes."""
    shown = ask(config, "network.show")
    if output is Output.JSON:
        put_json(shown)
        return
    for key, value in shown.items():
        put(f"{key.replace('_', ' ')}: {_value(value)}")


@network.command("set")
def network_set(
    default_community: Annotated[
        DefaultCommunity,
        typer.Option(
            "--default-community",
            help="What nodes in no community share: all (a flat network) or none (the cloud only).",
        ),
    ],
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Change what holds for all nodes; all hear of it."""
    answer = ask(config, "network.set", default_community=default_community.value)
    if output is Output.JSON:
        put_json(answer)
    else:
        put(f"default community: {answer['default_community']}")


@pod.command("list")
def pod_list(
    name: Annotated[str | None, typer.Option("--node", help="Of this node only.")] = None,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Which pod holds which address, as the nodes reported last."""
    found = ask(config, "pod.list", node=name)
    if output is Output.JSON:
        put_json(found)
        return
    at_s = {each["uid"]: each["reported_at_s"] for each in found["nodes"]}
    rows = [
        {**each, "addresses": ",".join(each["addresses"]), "reported": age(at_s[each["uid"]])}
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
