"""`limpet token|segment|network|pod`, and what else a person asks of the IP controller."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from limpet.cli.commands.community import community
from limpet.cli.commands.controller import UNITS_S, Config, Format, age, ask, controller
from limpet.cli.commands.node import node, parse_label, value_text
from limpet.cli.output import Output, put, put_json, put_table, say
from limpet.cluster.kinds.network import DefaultCommunity, Encryption, TunnelBackend

_SEGMENT_COLUMNS = ("segment", "state", "node", "resting_since", "uid")
_POD_COLUMNS = ("node", "namespace", "pod", "network", "ifname", "addresses", "reported")

token = typer.Typer(help="Join tokens.", no_args_is_help=True, rich_markup_mode=None)
segment = typer.Typer(help="Address segments.", no_args_is_help=True, rich_markup_mode=None)
network = typer.Typer(help="What holds for all nodes.", no_args_is_help=True, rich_markup_mode=None)
pod = typer.Typer(help="Pods of the cluster.", no_args_is_help=True, rich_markup_mode=None)


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
        labels=dict(map(parse_label, label or [])),
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
        put(f"{key.replace('_', ' ')}: {value_text(value)}")


@network.command("set")
def network_set(
    default_community: Annotated[
        DefaultCommunity | None,
        typer.Option(
            "--default-community",
            help="What nodes in no community share: all (a flat network) or none (the cloud only).",
        ),
    ] = None,
    encryption: Annotated[
        Encryption | None,
        typer.Option("--encryption", help="Of pod traffic: between sites, or all between nodes."),
    ] = None,
    tunnel_backend: Annotated[
        TunnelBackend | None,
        typer.Option(
            "--tunnel-backend",
            help="What makes the tunnels between nodes; for ipsec each needs strongSwan.",
        ),
    ] = None,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Change what holds for all nodes; all hear of it."""
    asked = {
        "default_community": default_community,
        "encryption": encryption,
        "tunnel_backend": tunnel_backend,
    }
    wanted = {key: value.value for key, value in asked.items() if value is not None}
    if not wanted:
        raise typer.BadParameter(
            "name what to set: --default-community, --encryption or --tunnel-backend"
        )
    answer = ask(config, "network.set", **wanted)
    if output is Output.JSON:
        put_json(answer)
        return
    for key in wanted:
        put(f"{key.replace('_', ' ')}: {answer[key]}")


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
