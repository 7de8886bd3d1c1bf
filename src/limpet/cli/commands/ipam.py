"""`limpet ipam list|check|repair|release`."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import asdict

from limpet.agent.client import ask
from limpet.agent.settings import load_settings
from limpet.agent.status.node import (
    AddressRecord,
    RecordCheck,
    RecordFinding,
    Records,
    Released,
    Repaired,
    Status,
    record_line,
)
from limpet.base.disk import cause
from limpet.base.errors import AgentUnavailable, LimpetError, StorageError
from limpet.base.settings import Folders
from limpet.base.text.nearest import did_you_mean
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format, group
from limpet.cli.output import Output, put, put_document, put_table, say, show, show_table

if TYPE_CHECKING:  # loaded only where files are read in place of the agent
    from limpet.ipam.ledger import LedgerView

_RECORD_COLUMNS = ("network", "address", "state", "pod_namespace", "pod", "ifname", "container_id")
_RECORD_WIDE = ("ifname", "container_id")
_LEAK_COLUMNS = ("network", "address", "container_id", "ifname", "why")

ipam = group("Pod addresses of this node.")


@ipam.command("list")
@on_node
def ipam_list(
    network: Annotated[
        str | None, typer.Option("--network", help="Show only this network (default: all of them).")
    ] = None,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Addresses that are held, kept for absent pods, or resting."""
    folders = load_settings(config).folders
    try:
        records = ask(folders.socket, "ipam.list", Records).records
        networks = [each.name for each in ask(folders.socket, "status", Status).networks]
    except AgentUnavailable:
        _say_from_disk(folders)
        records = _records(folders.data_dir)
        networks = [name for name, _ in _views(folders.data_dir)]
    if network is not None:
        records = _of_network(network, records, networks)
    nothing = "no address is held or kept" + (f" on network {network}" if network else "")
    rows = [asdict(each) for each in records]
    show_table(
        {"records": records}, output, rows, _RECORD_COLUMNS, nothing=nothing, wide=_RECORD_WIDE
    )


def _of_network(
    network: str, records: list[AddressRecord], networks: list[str]
) -> list[AddressRecord]:
    """Raises: LimpetError where no network is called so."""
    if network not in networks:
        there = f"there are {', '.join(networks)}" if networks else "there is none yet"
        raise LimpetError(
            f"list addresses: no network {network} has records on this node ({there})."
            f"{did_you_mean(network, networks)}"
        )
    return [each for each in records if each.network == network]


@ipam.command("check")
@on_node
def ipam_check(config: Config = None, output: Format = Output.TABLE) -> None:
    """Addresses that nothing uses any more, and damage; exit code 1 when there are any."""
    folders = load_settings(config).folders
    try:
        found = ask(folders.socket, "ipam.check", RecordCheck)
    except AgentUnavailable:
        found = _check_records(folders)
    if output.is_document:
        put_document(found, output)
    else:
        _put_check(found)
    if found.leaks is None or found.leaks or found.findings:
        raise typer.Exit(1)


def _check_records(folders: Folders) -> RecordCheck:
    """`leaks` is None: only an agent can tell which addresses are in use."""
    _say_from_disk(folders)
    findings = [
        RecordFinding(path=each.path, problem=each.problem, advice=each.action)
        for _, view in _views(folders.data_dir)
        for each in view.findings
    ]
    return RecordCheck(leaks=None, findings=findings)


def _put_check(found: RecordCheck) -> None:
    leaks, findings = found.leaks, found.findings
    if leaks:
        put_table([asdict(each) for each in leaks], _LEAK_COLUMNS)
        say("`limpet ipam repair` releases them")
    for each in findings:
        put(f"{each.path}: {each.problem} ({each.advice})")
    if leaks is None:
        sound = "the records have the damage above" if findings else "the records are sound"
        say(
            f"{sound}; whether each address that is held is in use, only a running agent can tell "
            "(limpet doctor says what is wrong with it)"
        )
    elif not leaks and not findings:
        say("every address that is held is in use, and the records are sound")


@ipam.command("repair")
@on_node
def ipam_repair(config: Config = None, output: Format = Output.TABLE) -> None:
    """Release what `check` finds; bindings of pods stay."""
    repaired = ask(load_settings(config).folders.socket, "ipam.repair", Repaired)
    rows = [asdict(each) for each in repaired.released]
    show_table(repaired, output, rows, _LEAK_COLUMNS, nothing="nothing to repair")


@ipam.command("release")
@on_node
def ipam_release(
    what: Annotated[
        str, typer.Argument(metavar="IP|POD", help="An address, or a pod as NAMESPACE/NAME.")
    ],
    network: Annotated[
        str | None,
        typer.Option(
            "--network", help="Network that the address is of; it is needed when there are several."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Release the address even while a container holds it.")
    ] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Keep an address for its pod no longer."""
    agent = load_settings(config).folders.socket
    wanted = _address_or_pod(what)
    network = _only_network(agent) if network is None else network
    answer = ask(agent, "ipam.release", Released, network=network, force=force, **wanted)
    if not answer.released:
        raise LimpetError(f"release {what}: nothing is kept for it on network {network}")
    show(answer, output, *(f"{address} released" for address in answer.released))


def _address_or_pod(what: str) -> dict[str, str]:
    namespace, slash, pod = what.partition("/")
    if slash and namespace and pod and "/" not in pod:
        return {"pod_namespace": namespace, "pod": pod}
    try:
        return {"address": str(ip_address(what))}
    except ValueError as error:
        raise typer.BadParameter(
            f"{what!r} is neither an address nor a pod as NAMESPACE/NAME", param_hint="WHAT"
        ) from error


def _only_network(agent: Path) -> str:
    names = [network.name for network in ask(agent, "status", Status).networks]
    if len(names) != 1:
        known = f"there are {', '.join(names)}" if names else "there is none yet"
        raise LimpetError(f"release: say which network with --network ({known})")
    return names[0]


# Without the agent.


def _say_from_disk(folders: Folders) -> None:
    say(f"limpet: no agent answers at {folders.socket}; read from {folders.data_dir}")


def _records(data_dir: Path) -> list[AddressRecord]:
    return [record_line(name, record) for name, view in _views(data_dir) for record in view.records]


def _views(data_dir: Path) -> Iterator[tuple[str, LedgerView]]:
    # Only here: most commands start without the records' code.
    from limpet.ipam.ledger import read_ledger

    try:
        folders = sorted(path for path in data_dir.iterdir() if path.is_dir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError("read folder", str(data_dir), cause(error)) from error
    for folder in folders:
        yield folder.name, read_ledger(folder)
