"""`limpet policy apply|delete|list|show`, and labels of this node's pods."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from limpet.agent.client import ask
from limpet.agent.policies.said import Applied, PodLabels, PodPolicies, Policies, SideLine
from limpet.agent.settings import Settings, load_settings
from limpet.base.bounds.words import FILE
from limpet.base.configuration import parse_toml
from limpet.base.errors import LimpetError
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format, group
from limpet.cli.output import Output, put, put_document, put_table, say, show, show_table
from limpet.cli.reach import ReachOptions
from limpet.cli.reach import ask as ask_controller
from limpet.controller.admin.answers import PoliciesSigned, PolicyWithdrawn, SignedPolicies
from limpet.kubernetes.access.yaml_text import parse_yaml

policy = group("Network policies of pods: of this node's, or of all nodes of the cluster.")

ForAll = Annotated[
    bool,
    typer.Option(
        "--cluster",
        help="Ask the controller, for all nodes of the cluster; --config is then the controller's.",
    ),
]
Pod = Annotated[str, typer.Argument(metavar="POD", help="The pod, as NAMESPACE/NAME.")]


@policy.command("apply")
def policy_apply(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="File with policies: YAML, or TOML if its name ends in .toml; - is YAML "
            "from standard input.",
        ),
    ],
    cluster: ForAll = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Put policies (and labels of namespaces) into force: all of the files, or nothing."""
    documents = [document for file in files for document in _documents(file)]
    if not documents:
        raise LimpetError(f"apply {', '.join(map(str, files))}: there is no document in it")
    if cluster:
        told = ask_controller(
            ReachOptions(config), "policy.apply", PoliciesSigned, documents=documents
        )
        lines = [
            f"{each}: {'signed, for all nodes' if each in told.changed else 'as it was'}"
            for each in told.applied
        ]
        show(told, output, *lines)
        return
    socket = load_settings(config).folders.socket
    answer = ask(socket, "policy.apply", Applied, documents=documents)
    show(answer, output, *(f"{each}: in force" for each in answer.changed))


def _documents(file: Path) -> list[Any]:
    """Raises: LimpetError."""
    try:
        is_piped = str(file) == "-"
        with nullcontext(sys.stdin.buffer) if is_piped else file.open("rb") as opened:
            content = opened.read(FILE.most + 1)
        if len(content) > FILE.most:
            raise LimpetError(f"read {file}: it has more than {FILE.most:,} bytes")
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise LimpetError(f"read {file}: {cause}") from error
    if file.suffix == ".toml":
        return _of_toml(file, text)
    try:
        found = [each for each in parse_yaml(text) if each is not None]
    except ValueError as error:
        raise LimpetError(f"read {file}: no YAML: {error}") from error
    listed = []
    for each in found:
        items = each.get("items") if isinstance(each, dict) else None
        listed += items if isinstance(items, list) and "spec" not in each else [each]
    return listed


def _of_toml(file: Path, text: str) -> list[Any]:
    """One document, or several as [[policies]]. Raises: LimpetError."""
    try:
        found = parse_toml(text)
    except ValueError as error:
        raise LimpetError(f"read {file}: no TOML: {error}") from error
    several = found.get("policies")
    return several if isinstance(several, list) else [found] if found else []


@policy.command("delete")
def policy_delete(
    name: Annotated[str, typer.Argument(metavar="POLICY", help="The policy, as NAMESPACE/NAME.")],
    cluster: ForAll = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Take a policy out of force."""
    if cluster:
        told = ask_controller(ReachOptions(config), "policy.delete", PolicyWithdrawn, **_key(name))
        show(told, output, *(f"{each}: withdrawn, on all nodes" for each in told.changed))
        return
    socket = load_settings(config).folders.socket
    answer = ask(socket, "policy.delete", Applied, **_key(name))
    show(answer, output, *(f"{each}: deleted" for each in answer.changed))


@policy.command("list")
@on_node
def policy_list(
    cluster: ForAll = False, config: Config = None, output: Format = Output.TABLE
) -> None:
    """Policies that this node knows of, and how many of its pods each selects."""
    if cluster:
        _list_of_cluster(
            ask_controller(ReachOptions(config), "policy.list", SignedPolicies), output
        )
        return
    settings = load_settings(config)
    found = ask(settings.folders.socket, "policy.list", Policies)
    show_policies(found, output, looks_away=_looks_away(settings))


_LOOKS_AWAY = 'this node does not look at NetworkPolicies of Kubernetes (policies = "off")'


def _looks_away(settings: Settings) -> bool:
    """Whether the cluster may have NetworkPolicies, which nothing on this node sees to."""
    return settings.source.source == "kubernetes" and settings.policies.mode != "on"


def show_policies(found: Policies, output: Output, *, looks_away: bool = False) -> None:
    """What a node has, and what is wrong with it; `looks_away`: from those of Kubernetes."""
    rows = [
        {
            "policy": f"{each.namespace}/{each.name}",
            "types": ",".join(each.types),
            "pods": each.pods,
            "selects here": len(each.selected),
        }
        for each in found.policies
    ]
    if rows or output.is_document or not found.problems:
        why = f"{_LOOKS_AWAY}, and has no others" if looks_away else "there is no policy"
        show_table(found, output, rows, nothing=f"{why}, so all pods may do what they want")
    for problem in found.problems:
        say(problem)


def _list_of_cluster(told: SignedPolicies, output: Output) -> None:
    if output.is_document:
        put_document(told, output)
    elif told.policies:
        put_table([{"policy": each.name, "revision": each.revision} for each in told.policies])
    else:
        put("the cluster has no policy")


@policy.command("show")
@on_node
def policy_show(pod: Pod, config: Config = None, output: Format = Output.TABLE) -> None:
    """What a pod of this node may receive and send, and by which policies."""
    settings = load_settings(config)
    found = ask(settings.folders.socket, "policy.show", PodPolicies, **_key(pod))
    if output.is_document:
        show(found, output)
        return
    put(f"pod: {found.pod} ({', '.join(found.addresses)})")
    labels = found.labels
    put(
        "labels: nobody has told them yet; what a policy might close is closed"
        if labels is None
        else f"labels: {','.join(f'{key}={value}' for key, value in sorted(labels.items())) or '-'}"
    )
    for side in found.sides:
        _put_side(side)
    if _looks_away(settings):
        say(_LOOKS_AWAY)


def _put_side(side: SideLine) -> None:
    if not side.isolated:
        put(f"{side.direction}: everything, since no policy isolates the pod")
        return
    put(f"{side.direction}: isolated by {', '.join(side.policies)}")
    if not side.rules:
        put("  nothing is allowed")
        return
    put_table(
        [
            {
                **{key: value for key, value in asdict(rule).items() if key == "policy"},
                "peers": "; ".join(rule.peers) or "everybody",
                "pods' addresses": "" if rule.addresses is None else str(rule.addresses),
                "ports": ", ".join(rule.ports) or "all",
            }
            for rule in side.rules
        ]
    )


def pod_label(
    pod: Pod,
    labels: Annotated[
        list[str],
        typer.Argument(
            metavar="LABEL...", help="Label of the pod: KEY=VALUE sets it, KEY- takes it away."
        ),
    ],
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Label a pod of this node, for policies to select; it keeps them when it comes back."""
    put_labels, drop = {}, []
    for each in labels:
        key, equals, value = each.partition("=")
        if equals:
            put_labels[key] = value
        elif each.endswith("-"):
            drop.append(each[:-1])
        else:
            raise typer.BadParameter(f"{each!r} is neither KEY=VALUE nor KEY-", param_hint="LABEL")
    socket = load_settings(config).folders.socket
    answer = ask(socket, "pod.label", PodLabels, put=put_labels, drop=drop, **_key(pod))
    words = ",".join(f"{key}={value}" for key, value in sorted(answer.labels.items()))
    show(answer, output, f"{answer.pod}: {words or 'no label'}")


def _key(word: str) -> dict[str, str]:
    namespace, slash, name = word.rpartition("/")
    if not name or "/" in namespace or (slash and not namespace):
        raise typer.BadParameter(f"{word!r} is not NAMESPACE/NAME")
    return {"namespace": namespace or "default", "name": name}
