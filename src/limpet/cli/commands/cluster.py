"""`limpet segment|network|pod`, and what else a person asks of the IP controller."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec import to_builtins
from msgspec.structs import asdict

from limpet.cli.commands.controller import age
from limpet.cli.commands.node import value_text
from limpet.cli.commands.serving.policy import pod_label
from limpet.cli.options import Format, group
from limpet.cli.output import Output, say, show, show_table
from limpet.cli.reach import HERE, ReachOptions, ask, reaching
from limpet.cluster.kinds.network import (
    DefaultCommunity,
    Encryption,
    ServicesMode,
    TunnelBackend,
)
from limpet.controller.admin.answers import (
    NetworkChanged,
    NetworkShown,
    PodPage,
    PodsListed,
    SegmentsListed,
)

_POD_COLUMNS = ("node", "namespace", "pod", "network", "ifname", "addresses", "state", "reported")
_POD_WIDE = ("ifname", "reported")

segment = group("Address segments.")
network = group("What holds for all nodes.")
pod = group("Pods of the cluster.")


@segment.command("list")
@reaching
def segment_list(reach: ReachOptions = HERE, output: Format = Output.TABLE) -> None:
    """Which segments are held, and which rest."""
    answer = ask(reach, "segment.list", SegmentsListed)
    rows = [
        {
            "segment": each.segment,
            "state": each.state,
            "node": each.node,
            "resting_since": age(each.resting_since_s),
            "uid": each.uid,
        }
        for each in answer.segments
    ]
    show_table(answer, output, rows, nothing="no segment is granted", wide=("uid",))


@network.command("show")
@reaching
def network_show(reach: ReachOptions = HERE, output: Format = Output.TABLE) -> None:
    """Address space, VXLAN and other values that hold for all nodes."""
    shown = ask(reach, "network.show", NetworkShown)
    values = to_builtins(shown).items()
    lines = [f"{key.replace('_', ' ')}: {value_text(value)}" for key, value in values]
    show(shown, output, *lines)


@network.command("set")
@reaching
def network_set(
    default_community: Annotated[
        DefaultCommunity | None,
        typer.Option(
            "--default-community",
            help="Whom nodes in no community reach: all (a flat network) or none (the cloud only).",
        ),
    ] = None,
    encryption: Annotated[
        Encryption | None,
        typer.Option(
            "--encryption",
            help="Which traffic of pods is encrypted: that between sites, or all between nodes.",
        ),
    ] = None,
    tunnel_backend: Annotated[
        TunnelBackend | None,
        typer.Option(
            "--tunnel-backend",
            help="What makes the tunnels between nodes; for ipsec each node needs strongSwan.",
        ),
    ] = None,
    services: Annotated[
        ServicesMode | None,
        typer.Option(
            "--services",
            help="Which nodes serve Kubernetes' Services: none, those without kube-proxy, or all.",
        ),
    ] = None,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """Change what holds for all nodes; all hear of it."""
    asked = {
        "default_community": default_community,
        "encryption": encryption,
        "tunnel_backend": tunnel_backend,
        "services": services,
    }
    wanted = {key: value.value for key, value in asked.items() if value is not None}
    if not wanted:
        raise typer.BadParameter(
            "name what to set: --default-community, --encryption, --tunnel-backend or --services"
        )
    answer = ask(reach, "network.set", NetworkChanged, **wanted)
    now = to_builtins(answer)
    show(answer, output, *(f"{key.replace('_', ' ')}: {now[key]}" for key in wanted))


@pod.command("list")
@reaching
def pod_list(
    name: Annotated[
        str | None, typer.Option("--node", help="Show only the pods of this node.")
    ] = None,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """Which pod holds which address, or has it kept for when it comes back, as the nodes reported
    last."""
    found = _all_pods(reach, name)
    reported = {each.uid: age(each.reported_at_s) for each in found.nodes}
    rows = [
        {
            **asdict(each),
            "addresses": ",".join(each.addresses),
            "state": "kept" if each.kept else "there",
            "reported": reported[each.uid],
        }
        for each in found.pods
    ]
    show_table(found, output, rows, _POD_COLUMNS, nothing="no pod was reported", wide=_POD_WIDE)
    for each in found.nodes if not output.is_document else ():
        if each.reported_at_s is None:
            say(f"{each.node} ({each.uid}) has never reported")


def _all_pods(reach: ReachOptions, name: str | None) -> PodsListed:
    """All answers of the controller as one."""
    page = ask(reach, "pod.list", PodPage, node=name)
    pods, nodes = page.pods, page.nodes
    while page.after:
        page = ask(reach, "pod.list", PodPage, node=name, after=page.after)
        pods += page.pods
        nodes += page.nodes
    return PodsListed(pods=pods, nodes=nodes)


pod.command("label")(pod_label)
