"""`limpet install`: look first, then write; the runtime's configuration last."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from limpet.agent.settings import Settings, load_settings, parse_settings
from limpet.base.errors import AgentUnavailable, CommandLineError, ConfigError, LimpetError
from limpet.cli.doctor.cluster.membership import examine_policies, examine_vxlan
from limpet.cli.doctor.examine import examine
from limpet.cli.doctor.findings import Finding, error, errors, gather
from limpet.cli.doctor.target import Installation
from limpet.cli.install.cni_configs import read_cni_configs
from limpet.cli.install.files import Manifest
from limpet.cli.install.flannel.aside import load_aside
from limpet.cli.install.flannel.found import (
    Flannel,
    examine_flannel,
    examine_segments,
    find_flannel,
)
from limpet.cli.install.flannel.take_over import (
    keep_flannels_routes,
    note_flannel,
    put_rest_aside,
    switch,
)
from limpet.cli.install.joining import (
    JoinOptions,
    folders_of,
    granted_state,
    join_first,
    node_to_join,
    own_snapshot,
)
from limpet.cli.install.kubernetes import examine_node, find_controllers, node_to_be
from limpet.cli.install.options import AskedSettings, InstallOptions
from limpet.cli.install.planned_files import (
    PlannedFile,
    differs,
    examine_edits,
    planned_files,
    put_file,
)
from limpet.cli.install.report import InstallReport
from limpet.cli.install.runtimes import find_runtimes, folders_in_use
from limpet.cli.install.starting import probe_shim, start_agent
from limpet.cli.install.units.agent_pod import container_process, is_left_by_pod, keep_off
from limpet.cli.install.units.dns_service import start_dns, stop_dns
from limpet.cli.install.units.service import (
    UNIT,
)
from limpet.cluster.identity import load_identity
from limpet.cni.conflist import CONFLIST
from limpet.cni.protocol.ipam import OWN_TYPE
from limpet.ipam.leaving import only_network

_NETWORK_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
"""Source: CNI SPEC.md, 'Configuration format', key name."""
TAKEN_OVER = "flannel"
"""What --take-over knows."""


def install(options: InstallOptions) -> InstallReport:
    """Raises: LimpetError (ConfigError, StorageError, KernelError) where it cannot go on."""
    if options.network_name is not None and not _NETWORK_NAME.fullmatch(options.network_name):
        raise CommandLineError(
            f"install: network name {options.network_name!r}: a letter or digit, "
            "then letters, digits, `_`, `.`, `-`"
        )
    if options.cni_only:
        return _put_cni(options, _settings(options))
    _refuse_beside_pod(options, _settings(options))
    flannel = None
    if options.take_over:
        flannel = _find_flannel(options, _settings(options).folders.state_dir)
        options = _as_flannel(options, flannel)
    settings = _settings(options)
    options = _in_kubernetes(options, settings)
    joining = node_to_join(options.join, settings, options.asked.segments)
    target = _target(options, settings, joining=joining)
    files = planned_files(options, target)
    report = InstallReport(findings=_look(options, settings, target, files, flannel))
    if errors(report.findings) and not options.force:
        report.failure = f"nothing was changed: {_IN_THE_WAY}"
    elif options.dry_run:
        controllers = " or ".join(options.join.controllers)
        report.steps += [f"would join the cluster of {controllers}"] if joining else []
        report.steps += [f"would write {file.path}" for file in files if differs(file)]
    else:
        if joining:
            _join(options, settings, target, files, report, flannel)
        if report.complete:
            manifest = Manifest.load(settings.folders.state_dir)
            _write(options, target, manifest, files, report, flannel)
    return report


def _refuse_beside_pod(options: InstallOptions, settings: Settings) -> None:
    """Two agents cannot run, and the settings of a DaemonSet's are not on this machine.

    Raises: LimpetError.
    """
    try:
        pid = container_process(settings.folders.socket)
    except AgentUnavailable as unavailable:
        is_said = options.asked != AskedSettings() or options.paths.config.exists()
        if not (is_said or options.join.token or options.force) and is_left_by_pod(settings):
            raise LimpetError(
                "install: the agent of this node was a pod's, which does not run now, and whose "
                "settings are not on this machine: kubectl -n limpet-system get pods -o wide ("
                f"{_as_service(settings)}; or write {options.paths.config} first)"
            ) from unavailable
        return
    if pid:  # one that is not seen may be a service as well: it is this process that is shut in
        raise LimpetError(
            f"install: the agent of this node runs in a container (process {pid} here), which "
            f"puts the runtime's files in place when it starts ({_as_service(settings)})"
        )


def _as_service(settings: Settings) -> str:
    return (
        f"to have it as a service, first {keep_off(settings)}, wait until its pod is gone, and "
        "say --kubernetes"
    )


def _find_flannel(options: InstallOptions, state_dir: Path) -> Flannel:
    """Raises: LimpetError."""
    if options.take_over != TAKEN_OVER:
        raise CommandLineError(
            f"install: --take-over {options.take_over}: only {TAKEN_OVER} can be taken over"
        )
    if not options.start:
        raise CommandLineError("install: --take-over needs the agent: leave --no-start out")
    conf_dir, _ = folders_in_use(find_runtimes())
    return find_flannel(options.paths.cni_conf_dir or conf_dir, state_dir)


def _as_flannel(options: InstallOptions, flannel: Flannel) -> InstallOptions:
    """Its network and its bridge: so pods that run, and their addresses, are those of before."""
    asked = replace(options.asked, bridge=options.asked.bridge or flannel.bridge)
    return replace(options, asked=asked, network_name=flannel.network)


def _put_cni(options: InstallOptions, settings: Settings) -> InstallReport:
    """The binary, and last what makes runtimes call it.

    Nothing else is looked at: from a container little of the machine is seen, and the shim waits
    for an agent that is about to start.
    """
    if options.join != JoinOptions() or options.asked != AskedSettings():
        raise CommandLineError(
            "install: --cni-only puts files of the runtime's in place and configures no agent "
            "(leave the other options out)"
        )
    report = InstallReport()
    if not options.dry_run:
        # The agent of this machine waits for these files, and reads no record of them.
        _, damage = Manifest.begin(settings.folders.state_dir)
        report.steps += [damage] if damage else []
    if not settings.pods.cni:
        report.steps.append("the agent's configuration has cni = false: nothing to put in place")
        return report
    files = planned_files(options, _target(options, settings, joining=False))
    files = [file for file in files if file.role in ("binary", "shim_conf", "conflist")]
    manifest = Manifest.load(settings.folders.state_dir)
    report.findings = list(examine_edits(manifest, files))
    for file in files:
        if options.dry_run:
            report.steps += [f"would write {file.path}"] if differs(file) else []
        else:
            report.steps.append(put_file(manifest, file))
    return report


def _in_kubernetes(options: InstallOptions, settings: Settings) -> InstallOptions:
    """With what the cluster says: who this node is, and, if it has to join, where the controllers
    are. Raises: LimpetError."""
    join, source = options.join, settings.source
    if source.source != "kubernetes" or load_identity(settings.folders.cluster_dir) is not None:
        return options
    if not join.token:
        if options.asked.kubernetes is None or not options.start:
            return options
        raise ConfigError(
            "install: this node is in no cluster yet: say --token (limpet token create makes one "
            "on any machine that may administer the cluster)"
        )
    name = node_to_be(source, join.name)
    return replace(
        options, join=JoinOptions(join.token, join.controllers or find_controllers(source), name)
    )


_IN_THE_WAY = "findings marked `error` stand in the way (--force goes on all the same)"


def _target(options: InstallOptions, settings: Settings, *, joining: bool) -> Installation:
    manifest = Manifest.load(settings.folders.state_dir)
    folders = {file.role: Path(file.path).parent for file in manifest.files.values()}
    used = folders_in_use(find_runtimes(), folders.get("conflist"), folders.get("binary"))
    conflist = (options.paths.cni_conf_dir or used[0]) / CONFLIST
    known = _name_in(conflist) or only_network(settings.folders.data_dir)
    return Installation(
        settings,
        granted_state(settings),
        conflist,
        options.paths.cni_bin_dir or used[1],
        options.network_name or known or "limpet",
        allow_forward=options.asked.allow_forward or settings.pods.allow_forward,
        installed=bool(manifest.of_role("conflist")),
        joining=joining,
    )


def _name_in(conflist: Path) -> str:
    """The network's, whose records of addresses have it, too; empty: there is none."""
    for config in read_cni_configs(conflist.parent):
        if config.path == conflist and OWN_TYPE in config.plugins:
            return config.name if _NETWORK_NAME.fullmatch(config.name) else ""
    return ""


def _look(
    options: InstallOptions,
    settings: Settings,
    target: Installation,
    files: Iterable[PlannedFile],
    flannel: Flannel | None,
) -> list[Finding]:
    """`settings`: as they are or will be written. `flannel`: it is taken over, and in nobody's
    way."""
    return [
        *_against_config(options, settings, flannel),
        *_against_flannel(settings, target, flannel),
        *gather(
            lambda: examine(target if flannel is None else _without_flannel(target, flannel)),
            lambda: _vxlan(settings) if flannel is None else iter(()),
            lambda: examine_edits(Manifest.load(settings.folders.state_dir), files),
            lambda: _former_cni(settings),
            lambda: _node_object(options, settings),
            lambda: examine_policies(settings),
        ),
    ]


def _vxlan(settings: Settings) -> Iterator[Finding]:
    network = own_snapshot(settings).network
    if network is not None:
        yield from examine_vxlan(network.vxlan_id, network.vxlan_port)


def _without_flannel(target: Installation, flannel: Flannel) -> Installation:
    links = tuple(device.ifname for device in flannel.devices)
    return replace(target, replaced=flannel.conflists, replaced_links=links)


def _against_flannel(
    settings: Settings, target: Installation, flannel: Flannel | None
) -> Iterator[Finding]:
    if flannel is not None:
        noted = load_aside(settings.folders.state_dir) is not None
        yield from examine_flannel(flannel, noted=noted)
        yield from examine_segments(flannel, target.state.segments)


def _node_object(options: InstallOptions, settings: Settings) -> Iterator[Finding]:
    identity = load_identity(settings.folders.cluster_dir)
    if settings.source.source == "kubernetes" and (identity or options.join.token):
        name = identity.name if identity else options.join.name
        yield from examine_node(settings.source, name)


def _former_cni(settings: Settings) -> Iterator[Finding]:
    """A node that attached pods, and is not to any more."""
    for file in Manifest.load(settings.folders.state_dir).of_role("conflist"):
        if not settings.pods.cni:
            yield error(
                "cni-off",
                f"{file.path} makes the runtime call Limpet, and the agent's configuration has "
                "cni = false",
                "pods would not start, and those that Limpet has attached would not go",
                "limpet uninstall first (it says which pods are in the way), then install again",
            )


def _join(
    options: InstallOptions,
    settings: Settings,
    target: Installation,
    files: Iterable[PlannedFile],
    report: InstallReport,
    flannel: Flannel | None,
) -> None:
    """Afterwards is known what the cluster is like, and all is looked at once more."""
    report.steps.append(join_first(settings, options.join, force=options.force))
    granted = replace(target, state=granted_state(settings), joining=False)
    report.findings = _look(options, settings, granted, files, flannel)
    if errors(report.findings) and not options.force:
        report.failure = f"the node has joined, but is not installed: {_IN_THE_WAY}"


def _settings(options: InstallOptions) -> Settings:
    """Settings of the configuration that is there; else of the one that will be written."""
    if options.paths.config.exists():
        return load_settings(options.paths.config)
    return _asked(options)


def _asked(options: InstallOptions) -> Settings:
    """What the command line says. Raises: CommandLineError."""
    try:
        return parse_settings(options.asked.document(), "from the command line")
    except ConfigError as error:
        raise CommandLineError(str(error)) from error


def _against_config(
    options: InstallOptions, settings: Settings, flannel: Flannel | None
) -> Iterator[Finding]:
    """A configuration that is there is a person's: what the command line says has to be in it, and
    flannel's bridge, where it is taken over: its pods are on that one."""
    if not options.paths.config.exists():
        return
    asked = _asked(options)
    if asked.source not in (Settings().source, settings.source):
        yield error(
            "option-differs",
            f"{options.paths.config} says otherwise than the command line where the API server is",
            "a configuration that is there is never overwritten",
            "write there: "
            + "; ".join(
                f"{key} = {json.dumps(value)}"
                for key, value in options.asked.document().items()
                if key == "source" or key.startswith("kubernetes_")
            ),
        )
    for name in ("segments", "cluster_cidrs", "allow_forward", "cni", "bridge"):
        wanted, there = getattr(asked.pods, name), getattr(settings.pods, name)
        if wanted not in (getattr(Settings().pods, name), there):
            text = json.dumps(options.asked.document()[name])
            is_flannels = flannel is not None and (name, wanted) == ("bridge", flannel.bridge)
            whose = "flannel" if is_flannels else "the command line"
            yield error(
                "option-differs",
                f"{options.paths.config} has another value of {name} than {whose}",
                "a configuration that is there is never overwritten",
                f"write {name} = {text} there"
                + ("" if is_flannels else ", or leave the option out"),
            )


# Writing.


def _write(
    options: InstallOptions,
    target: Installation,
    manifest: Manifest,
    files: Iterable[PlannedFile],
    report: InstallReport,
    flannel: Flannel | None,
) -> None:
    settings = target.settings
    conflists = [file for file in files if file.role == "conflist"]
    for folder in folders_of(settings):
        manifest.make_folder(folder)
    for file in files:
        if file not in conflists:
            report.steps.append(put_file(manifest, file))
    aside = note_flannel(settings, flannel) if flannel is not None else None
    if flannel is not None:
        keep_flannels_routes(flannel)
    if settings.dns.dns == "off":
        report.steps += stop_dns(manifest)
    if options.start:
        start_agent(options, settings, report)
        if report.complete:
            probe_shim(target, manifest, report, force=options.force)
        if report.complete:
            report.steps += start_dns(settings, options.paths.config)
    else:
        report.steps.append(
            f"the agent is not started, as asked; start it with: systemctl enable --now {UNIT}"
        )
    if report.complete and aside is not None:
        report.steps += switch(settings, aside, force=options.force)
    if report.complete:
        report.steps += [put_file(manifest, file) for file in conflists]
    if report.complete and flannel is not None:
        report.steps += put_rest_aside(flannel.conflists)
