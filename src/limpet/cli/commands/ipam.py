"""`limpet ipam list|check|repair|release`."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import typer
from msgspec.structs import asdict

from limpet.agent.client import ask
from limpet.agent.settings import Settings
from limpet.agent.status import (
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
from limpet.cli.output import Output, put, put_json, put_table, say
from limpet.ipam.ledger import LedgerView, read_ledger

_RECORD_COLUMNS = ("network", "address", "state", "pod_namespace", "pod", "ifname", "container_id")
_LEAK_COLUMNS = ("network", "address", "container_id", "ifname", "why")


def list_addresses(settings: Settings, network: str | None, output: Output) -> None:
    """From the agent; from the folders when none runs. Raises: LimpetError."""
    try:
        records = ask(settings.folders.socket, "ipam.list", Records, network=network).records
    except AgentUnavailable:
        _say_from_disk(settings.folders)
        records = _records(settings.folders.data_dir, network)
    if output is Output.JSON:
        put_json({"records": records})
    elif records:
        put_table(map(asdict, records), _RECORD_COLUMNS)
    else:
        say("no address is held or kept" + (f" on network {network}" if network else ""))


def check_addresses(settings: Settings, output: Output) -> int:
    """Exit code: 1 when something was found, or could not be looked at. Raises: LimpetError."""
    try:
        found = ask(settings.folders.socket, "ipam.check", RecordCheck)
    except AgentUnavailable:
        found = _check_records(settings)
    if output is Output.JSON:
        put_json(found)
    else:
        _put_check(found)
    return 1 if found.leaks is None or found.leaks or found.findings else 0


def _check_records(settings: Settings) -> RecordCheck:
    """`leaks` is None: only an agent can tell which addresses are in use."""
    _say_from_disk(settings.folders)
    findings = [
        RecordFinding(path=each.path, problem=each.problem, advice=each.action)
        for _, view in _views(settings.folders.data_dir)
        for each in view.findings
    ]
    return RecordCheck(leaks=None, findings=findings)


def _put_check(found: RecordCheck) -> None:
    leaks, findings = found.leaks, found.findings
    if leaks:
        put_table(map(asdict, leaks), _LEAK_COLUMNS)
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


def repair_addresses(settings: Settings, output: Output) -> None:
    """Raises: AgentUnavailable: only the agent may write the records."""
    released = ask(settings.folders.socket, "ipam.repair", Repaired).released
    if output is Output.JSON:
        put_json({"released": released})
    elif released:
        put_table(map(asdict, released), _LEAK_COLUMNS)
    else:
        say("nothing to repair")


def release_address(
    settings: Settings, what: str, network: str | None, output: Output, *, force: bool
) -> None:
    """Raises: LimpetError; typer.BadParameter for something that is neither address nor pod."""
    arguments = _address_or_pod(what)
    if network is None:
        network = _only_network(settings)
    released = ask(
        settings.folders.socket, "ipam.release", Released, network=network, force=force, **arguments
    )
    if not released.released:
        raise LimpetError(f"release {what}: nothing is kept for it on network {network}")
    if output is Output.JSON:
        put_json(released)
    else:
        for address in released.released:
            put(f"{address} released")


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


def _only_network(settings: Settings) -> str:
    names = [network.name for network in ask(settings.folders.socket, "status", Status).networks]
    if len(names) != 1:
        known = f"there are {', '.join(names)}" if names else "there is none yet"
        raise LimpetError(f"release: say which network with --network ({known})")
    return str(names[0])


# Without the agent.


def _say_from_disk(folders: Folders) -> None:
    say(f"limpet: no agent answers at {folders.socket}; read from {folders.data_dir}")


def _records(data_dir: Path, network: str | None) -> list[AddressRecord]:
    return [
        record_line(name, record)
        for name, view in _views(data_dir)
        if network in (None, name)
        for record in view.records
    ]


def _views(data_dir: Path) -> Iterator[tuple[str, LedgerView]]:
    try:
        folders = sorted(path for path in data_dir.iterdir() if path.is_dir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError("read folder", str(data_dir), cause(error)) from error
    for folder in folders:
        yield folder.name, read_ledger(folder)
