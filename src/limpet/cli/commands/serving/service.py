"""`limpet service list|show`: Services as one node serves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from limpet.agent.client import ask
from limpet.agent.settings import load_settings
from limpet.agent.status.services import EndpointStatus, ServiceAnswer, ServiceLine, ServicesAnswer
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format, group
from limpet.cli.output import Output, counted, put, put_table, say, show, show_table
from limpet.services.values import NONE

_FEW = 5
"""Names that are said of many."""

service = group("Services of Kubernetes, as this node serves them.")


@service.command("list")
@on_node
def service_list(config: Config = None, output: Format = Output.TABLE) -> None:
    """Every Service, and how many of its endpoints are in rotation on this node."""
    answer = ask(load_settings(config).folders.socket, "services", ServicesAnswer)
    rows = [_row(each) for each in answer.services]
    show_table(answer, output, rows, nothing="no Service is known here")
    for line in answer.services:
        _say_trouble(line)
    _say_all([*without_programs_lines(answer.services), *left_out_lines(answer)])
    if answer.why_not_ebpf:
        say(f"limpet: served by nftables alone, not by eBPF: {answer.why_not_ebpf}")
    if answer.kube_proxy:
        say(f"limpet: kube-proxy has rules here, too: {answer.kube_proxy}")
    if not answer.connected:
        say(f"limpet: nothing new is heard of Services: {answer.error or 'not connected yet'}")
    _say_failed(answer.failed)


@service.command("show")
@on_node
def service_show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The Service, as NAMESPACE/NAME or by its cluster address."
        ),
    ],
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Endpoints of a Service: which are in rotation on this node, which are not, and why."""
    answer = ask(load_settings(config).folders.socket, "service", ServiceAnswer, name=name)
    line = answer.service
    addresses = ", ".join(line.addresses) or "no address"
    show(
        answer,
        output,
        f"{line.namespace}/{line.name}: {', '.join([line.type, addresses, *line.ports])}",
        *_behaviour(answer),
    )
    if not output.is_document:
        put("")
        if answer.endpoints:
            put_table([_endpoint_row(each) for each in answer.endpoints])
        else:
            put(no_endpoint_words(line))
        _say_trouble(line)
        _say_all([*without_programs_lines([line]), *answer.left_out])
        _say_failed(answer.failed)


def no_endpoint_words(line: ServiceLine) -> str:
    """What becomes of who asks a Service of which no endpoint is listed. Pure."""
    if line.type == "ExternalName":
        name = ", ".join(line.addresses)
        return f"none by its nature: its name leads to {name} (`limpet dns query`)"
    if line.addresses == [NONE]:
        return "none to choose from: its name leads to all pods that it has (`limpet dns query`)"
    return "no endpoint: whoever asks is refused"


def _say_trouble(line: ServiceLine) -> None:
    if line.trouble:
        say(f"limpet: {line.namespace}/{line.name} is not served as it asks: {line.trouble}")


def without_programs_lines(lines: Iterable[ServiceLine]) -> Iterator[str]:
    """Services for which eBPF programs have no room: the first by their names, the rest counted."""
    found = [f"{each.namespace}/{each.name}" for each in lines if each.is_without_programs]
    if found:
        more = f", and {counted(len(found) - _FEW, 'more Service')}" if len(found) > _FEW else ""
        yield (
            "served by nftables alone, since the eBPF programs' maps have no room: "
            f"{', '.join(found[:_FEW])}{more}"
        )


def left_out_lines(answer: ServicesAnswer) -> Iterator[str]:
    """What no node can use: the first of it in words, the rest counted."""
    yield from answer.left_out
    if (more := answer.left_out_objects - len(answer.left_out)) > 0:
        yield f"something is left out of {counted(more, 'more object')}"


def _say_all(found: Iterable[str]) -> None:
    for words in found:
        say(f"limpet: {words}")


def _say_failed(failed: list[str]) -> None:
    for failure in failed:
        say(f"limpet: the node is not as planned: {failure}")


def _row(line: ServiceLine) -> dict[str, Any]:
    return {
        "namespace": line.namespace,
        "name": line.name,
        "type": line.type,
        "addresses": ", ".join(line.addresses),
        "ports": ", ".join(line.ports),
        "endpoints": f"{line.used} of {line.endpoints} used",
    }


def _behaviour(answer: ServiceAnswer) -> list[str]:
    lines = []
    if answer.external:
        lines.append(f"  from outside: {', '.join(answer.external)}")
    if answer.affinity_s:
        lines.append(f"  a client stays with its endpoint for {answer.affinity_s} s")
    if answer.internal_local:
        lines.append("  within the cluster: endpoints of the client's node only")
    if answer.external_local:
        lines.append("  from outside: endpoints of this node only")
    if answer.distribution:
        lines.append(f"  traffic distribution: {answer.distribution}")
    return lines


def _endpoint_row(each: EndpointStatus) -> dict[str, Any]:
    return {
        "port": each.port,
        "endpoint": f"{each.address} port {each.target_port}",
        "node": each.node,
        "pod": each.pod,
        "weight": each.weight or "",
        "connections": each.connections,
        "why": each.why,
    }
