"""`limpet uninstall`: the runtime's configuration first, the binary last, nothing of ours left."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import typer

from limpet.agent.client import agent_pid
from limpet.agent.original_sysctls import SYSCTLS_FILE, read_originals
from limpet.agent.settings import Settings
from limpet.base.disk import refusals, remove_durably
from limpet.base.errors import AgentUnavailable, LimpetError, StorageError
from limpet.base.ownership import IPSEC_FOLDER, KUBERNETES_POLICIES, OWN_POLICIES, POD_GROUP
from limpet.base.text.few import few
from limpet.cli.answers import Uninstalled
from limpet.cli.doctor.pods.attached import read_pods
from limpet.cli.install.files import InstalledFile, Manifest
from limpet.cli.install.flannel.aside import load_aside
from limpet.cli.install.flannel.take_over import (
    finish_giving_back,
    give_back_devices,
    give_back_files,
)
from limpet.cli.install.joining import granted_state, identity_folders, node_name
from limpet.cli.install.units.agent_pod import container_process, keep_off
from limpet.cli.install.units.dns_service import DNS_SOCKET, stop_dns
from limpet.cli.install.units.service import UNIT, has_unit, systemctl, systemd_runs
from limpet.cli.needed_settings import needed_settings
from limpet.cli.output import Output, say, show
from limpet.cli.owners import owners
from limpet.datapath.node.basis import BASIS_FILE
from limpet.datapath.node.forward_keeper import FORWARD_FILE
from limpet.datapath.node.owned import pod_links
from limpet.datapath.node.plan import bridge_of_segments
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.teardown import remove_kernel_state
from limpet.datapath.tunnel.wireguard.process import SOCKET_FOLDER, WIREGUARD_LOG
from limpet.dns.handover.held import SOCKET as HELD_SOCKET
from limpet.ipam.leaving import give_away, held_in, own_folders, settle
from limpet.linux.owned import LinkMark
from limpet.services.kept import JOURNAL_FILE
from limpet.services.kept_here import HERE_FILE
from limpet.timeline.file import FOLDER, remove_all

_AGENT_STOP_S = 60.0
_PODS_NAMED = 5
_RUN_FOLDERS = ("attachments", IPSEC_FOLDER)
_RUN_FILES = (
    *("agent.lock", WIREGUARD_LOG, DNS_SOCKET, HELD_SOCKET, HERE_FILE, JOURNAL_FILE),
    *(FORWARD_FILE, BASIS_FILE),
)


@dataclass(slots=True)
class Removal:
    """What was done, line by line, and what could not be."""

    steps: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def uninstall(settings: Settings, *, purge: bool, force: bool) -> Removal:
    """Takes everything back that install and the agent did; goes on past what fails.

    Where the node was taken over from flannel it is given back: pods go on, on its bridge.
    Raises: LimpetError, with nothing changed, while pods are attached and not `force`.
    """
    _refuse_in_container(settings)
    state_dir = settings.folders.state_dir
    manifest = Manifest.load(state_dir)
    name = node_name(settings)
    to_flannel = load_aside(state_dir) is not None
    was_called = bool(manifest.of_role("conflist"))
    pods = attached_pods(settings)
    if pods and not force and not to_flannel:
        raise LimpetError(
            f"uninstall: pods are attached: {few(pods, _PODS_NAMED)} "
            "(stop them first, or --force takes their interfaces away)"
        )
    removal = Removal()
    attempt_steps(removal, lambda: give_back_files(state_dir))
    take_back(manifest, manifest.of_role("conflist"), removal)
    if not removal.failures:
        _stop_names(settings, manifest, removal)
        _stop_agent(settings, manifest, removal)
    if removal.failures:
        # A runtime would go on calling us, or an agent set up again what is taken away.
        return removal
    attempt_steps(removal, lambda: give_back_devices(state_dir))
    attempt(removal, lambda: _remove_kernel_state(settings, removal, keep_pods=to_flannel))
    _remove_run_dir(settings, removal)
    for role in ("unit", "shim_conf", "daemon"):
        take_back(manifest, manifest.of_role(role), removal)
    if systemd_runs():
        attempt(removal, lambda: systemctl("daemon-reload"))
    leave = give_away if to_flannel else settle
    for folder in own_folders(settings.folders.data_dir):
        attempt(removal, partial(leave, folder))
    if purge:
        # Where flannel's plugin goes on with them they stay, also what could not be given to it.
        for folder in () if to_flannel else own_folders(settings.folders.data_dir):
            attempt_steps(removal, partial(_remove_record, folder, was_called=was_called))
        _remove_identity(settings, removal)
        for path in _policy_files(settings):
            attempt_steps(removal, partial(_remove_policies, path))
    take_back(manifest, manifest.of_role("binary"), removal)
    if to_flannel and not removal.failures:
        attempt_steps(removal, lambda: finish_giving_back(state_dir, name))
    attempt(removal, partial(remove_timeline, state_dir))
    if purge and not removal.failures:
        # Last: it says where all else is that another attempt has to find.
        take_back(manifest, manifest.of_role("config"), removal)
    attempt(removal, lambda: _remove_state(settings, manifest, removal, purge=purge))
    return removal


def _policy_files(settings: Settings) -> list[Path]:
    """They would hold pods of the machine's next life, perhaps in another cluster."""
    found = (settings.folders.state_dir / name for name in (OWN_POLICIES, KUBERNETES_POLICIES))
    return [path for path in found if path.exists()]


def _remove_policies(path: Path) -> list[str]:
    """Raises: StorageError."""
    remove_durably(path)
    return [f"{path}: network policies removed"]


def put_removal(command: str, removal: Removal, output: Output, *, nothing: str) -> None:
    """Prints it; `nothing`, if that is what there was. Raises: typer.Exit after failures."""
    answer = Uninstalled(steps=removal.steps, failures=removal.failures)
    lines = removal.steps or ([] if removal.failures else [nothing])
    show(answer, output, *lines)
    for failure in removal.failures:
        say(f"limpet: {command}: {failure}")
    if removal.failures:
        raise typer.Exit(1)


def attempt_steps(removal: Removal, step: Callable[[], list[str]]) -> None:
    """Notes the steps that `step` tells of; a failure is noted, too, and does not stop the rest."""
    try:
        removal.steps += step()
    except LimpetError as error:
        removal.failures.append(str(error))


def remove_timeline(state_dir: Path) -> None:
    """Raises: StorageError."""
    with refusals("remove", state_dir / FOLDER):
        remove_all(state_dir)


def attempt(removal: Removal, step: Callable[[], None]) -> None:
    """A failure is noted, and does not stop the rest."""
    try:
        step()
    except LimpetError as error:
        removal.failures.append(str(error))


# Pods.


def attached_pods(settings: Settings) -> list[str]:
    """`namespace/pod (addresses)` of each, from the agent, or from /run when none answers; of one
    whose record is damaged, or a later version's, the link. Raises: KernelError."""
    found = read_pods(settings)
    told = {each.link.host_ifname for each in found}
    untold = sorted(
        f"{each} (a pod's link, of which no record tells)" for each in pod_links() - told
    )
    return [*sorted(map(_described, found)), *untold]


def _described(attachment: Attachment) -> str:
    name = f"{attachment.pod.namespace}/{attachment.pod.name}".strip("/")
    addresses = ", ".join(str(each.ip) for each in attachment.addresses)
    return f"{name or attachment.holder.container_id} ({addresses})"


# Names, and the agent.


def _stop_names(settings: Settings, manifest: Manifest, removal: Removal) -> None:
    attempt_steps(removal, lambda: stop_dns(manifest))
    path = settings.folders.run_dir / DNS_SOCKET
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError:
            return
    removal.failures.append(
        "`limpet dns serve` still runs, and no service of ours starts it "
        "(stop it: it makes its link anew; then uninstall again)"
    )


def _stop_agent(settings: Settings, manifest: Manifest, removal: Removal) -> None:
    if systemd_runs() and has_unit(manifest, "unit", UNIT):
        attempt(removal, lambda: systemctl("disable", "--now", UNIT))
    elif systemd_runs():
        # A unit that no record tells of, if there is one: a signal alone would start it anew.
        with contextlib.suppress(LimpetError):
            systemctl("stop", UNIT)
    attempt(removal, lambda: _stop_by_signal(settings, removal))


def _stop_by_signal(settings: Settings, removal: Removal) -> None:
    """An agent that no service manager runs. Raises: LimpetError."""
    try:
        _refuse_in_container(settings)
        pid = agent_pid(settings.folders.socket)
        process = os.pidfd_open(pid)
    except (AgentUnavailable, ProcessLookupError):
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended, _, _ = select.select([process], [], [], _AGENT_STOP_S)
    finally:
        os.close(process)
    if not ended:
        raise LimpetError(
            f"stop the agent: process {pid} has not ended within {_AGENT_STOP_S:.0f} s "
            f"(kill {pid}, then uninstall again)"
        )
    removal.steps.append(f"agent: stopped (process {pid})")


def _refuse_in_container(settings: Settings) -> None:
    """Raises: LimpetError."""
    try:
        pid = container_process(settings.folders.socket)
    except AgentUnavailable:
        return
    if pid is not None:
        raise LimpetError(
            f"stop the agent: it runs in a container (process {pid} here), which would be "
            f"started anew (delete the DaemonSet of Limpet, or {keep_off(settings)}; wait until "
            "its pod is gone from this node, then uninstall again)"
        )


# What the agent left.


def _remove_kernel_state(settings: Settings, removal: Removal, *, keep_pods: bool) -> None:
    """Raises: LimpetError."""
    path = settings.folders.state_dir / SYSCTLS_FILE
    originals: dict[str, str] | None = None
    needed: dict[str, str] = {}
    try:
        read = read_originals(path)
        needed = needed_settings(read, to_flannel=keep_pods)
        originals = read
    except LimpetError as error:
        removal.failures.append(f"{error}; kernel settings are not put back")
    gateways = bridge_of_segments("", granted_state(settings).segments).gateways
    ours = owners(settings.folders.run_dir)
    if keep_pods:
        ours = tuple(replace(each, links=tuple(filter(_is_of_no_pod, each.links))) for each in ours)
        gateways = ()
    report = remove_kernel_state(ours, originals or {}, gateways, needed)
    removal.steps += report.done
    removal.steps += [f"left alone: {line}" for line in report.kept]
    removal.failures += report.failed
    if originals is not None and not report.failed:
        remove_durably(path)


def _is_of_no_pod(mark: LinkMark) -> bool:
    return mark.group != POD_GROUP


def _remove_run_dir(settings: Settings, removal: Removal) -> None:
    """On tmpfs as a rule, and told to no one: it is gone with every reboot anyway."""
    folders = [settings.folders.run_dir / name for name in _RUN_FOLDERS]
    paths = [path for folder in folders for path in folder.glob("*")]
    paths.append(settings.folders.socket)
    paths += [settings.folders.run_dir / name for name in _RUN_FILES]
    for path in paths:
        attempt(removal, partial(_remove_file, path))
    for folder in (*folders, settings.folders.run_dir, SOCKET_FOLDER):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _remove_file(path: Path) -> None:
    """Raises: StorageError."""
    remove_durably(path)


def _remove_record(folder: Path, *, was_called: bool) -> list[str]:
    """`was_called`: by the runtime, up to now. Where it was not, who holds an address has it of
    another plugin, which goes on with the folder. Raises: StorageError."""
    held = [] if was_called else list(held_in(folder))
    if held:
        return [
            f"left alone: {folder}: containers hold addresses of it, {held[0]} among them "
            f"(rm -r {folder}, when no other network goes on with it)"
        ]
    with refusals("remove", folder):
        shutil.rmtree(folder)
    return [f"{folder}: address records removed"]


def _remove_identity(settings: Settings, removal: Removal) -> None:
    folders = identity_folders(settings)
    name = node_name(settings)
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            removal.failures.append(f"remove {folder}: {error.strerror or error}")
    if folders and not removal.failures:
        removal.steps.append(
            f"{settings.folders.cluster_dir}: removed: to be a node of the cluster again this "
            "machine needs a new token (limpet token create). Its segments stay taken until "
            f"somebody says, where the controller runs: limpet node remove {name}"
        )


def _remove_state(settings: Settings, manifest: Manifest, removal: Removal, *, purge: bool) -> None:
    """The record of the installation goes when nothing is left that it tells of.

    Raises: StorageError.
    """
    if removal.failures:
        return
    for folder in manifest.remove_folders():
        removal.steps.append(f"{folder}: removed")
    own = str(settings.folders.state_dir)
    left = [folder for folder in manifest.folders if not f"{own}/".startswith(f"{folder}/")]
    identity = [str(folder) for folder in identity_folders(settings)]
    policies = [str(path) for path in _policy_files(settings)]
    if identity:
        removal.steps.append(
            f"the node stays {node_name(settings)} of its cluster, with its segments and its pods' "
            "addresses: `limpet install` makes it work again"
        )
    if manifest.files or identity or policies or (left and not purge):
        manifest.save()
        kept = ", ".join([*manifest.files, *identity, *policies, *left])
        removal.steps.append(f"kept: {kept} (`limpet uninstall --purge` removes them)")
        return
    remove_durably(manifest.path)
    for folder in manifest.remove_folders():
        removal.steps.append(f"{folder}: removed")


def take_back(manifest: Manifest, files: Iterable[InstalledFile], removal: Removal) -> None:
    """Removes those files, or puts back what was there; failures are noted."""
    for file in list(files):
        try:
            removal.steps.append(manifest.take_back(file))
        except StorageError as error:
            removal.failures.append(str(error))
