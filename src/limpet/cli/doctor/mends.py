"""Mends that are safe to make by themselves: what Limpet made, or a file of its own name.

A person's own rules, links and settings are never among them. What is put into a file goes through
the record of the installation, so a former content is kept and uninstall puts it back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from limpet.agent.client import call
from limpet.base.addresses import Address
from limpet.cli.doctor.cluster.ways import changed_vtep_macs
from limpet.cli.doctor.machine.network_daemons import NETWORK_DAEMONS
from limpet.cli.doctor.machine.settings import wrong_sysctls
from limpet.cli.doctor.machine.traps import links_down
from limpet.cli.doctor.pods.attached import read_pods, stale_neighbours
from limpet.cli.doctor.target import Installation
from limpet.cli.install.files import Manifest
from limpet.cli.install.units.agent_pod import find_care
from limpet.cli.install.units.service import UNIT, has_unit, systemctl, systemd_runs
from limpet.cni.shim_binary import shim_path
from limpet.linux.netlink import address_codec, link_codec
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.sysctl import write_sysctl

MENDED = frozenset(
    {
        "address-leaks",
        "stale-neighbour",
        "own-link-down",
        "vtep-mac-changed",
        "sysctl-wrong",
        "agent-silent",
        "agent-version",
        "cni-binary-missing",
        "cni-binary-not-executable",
        "cni-binary-version",
        "networkmanager",
        "networkd",
    }
)
"""Findings that a mend may be had for; docs/doctor.md marks them."""


@dataclass(frozen=True, slots=True)
class Mend:
    """Something that can be put right, as the machine is now."""

    id: str
    """Id of the finding."""
    what: str
    """What will be done."""
    apply: Callable[[], object]
    """Raises: LimpetError."""


def mends(found: Collection[str], target: Installation) -> Iterator[Mend]:
    """What can be done about findings with these ids. Changes nothing. Raises: LimpetError."""
    settings = target.settings
    socket = settings.folders.socket
    if "address-leaks" in found:
        words = "release the addresses of containers that are gone (limpet ipam repair)"
        yield Mend("address-leaks", words, lambda: call(socket, "ipam.repair"))
    if "stale-neighbour" in found:
        for bridge, address, has, _ in stale_neighbours(read_pods(settings)):
            words = f"forget on {bridge} that {address} is at {has}"
            yield Mend("stale-neighbour", words, partial(_forget, bridge, address))
    if "own-link-down" in found:
        for ifname in links_down():
            yield Mend("own-link-down", f"set {ifname} up", partial(_set_up, ifname))
    if "vtep-mac-changed" in found:
        for ifname, mac in changed_vtep_macs(settings):
            words = f"give {ifname} its MAC {mac} again"
            yield Mend("vtep-mac-changed", words, partial(_set_mac, ifname, mac))
    if "sysctl-wrong" in found:
        for path, value in wrong_sysctls(settings.pods.bridge, target.state).items():
            words = f"set {path.replace('/', '.')} to {value}"
            yield Mend("sysctl-wrong", words, partial(write_sysctl, path, value))
    yield from _of_the_installation(found, target)


def _of_the_installation(found: Collection[str], target: Installation) -> Iterator[Mend]:
    if target.in_lab:
        return
    manifest = Manifest.load(target.settings.folders.state_dir)
    if not find_care(target.settings).image_brings_binary:
        yield from _of_the_agent(found, manifest)
    for daemon in NETWORK_DAEMONS:
        if daemon.id in found and manifest.files:
            words = f"write {daemon.file} ({daemon.name} reads it at its next start)"
            text = daemon.text(target.settings.pods.bridge).encode()
            put = partial(manifest.put, "daemon", Path(daemon.file), text, 0o644)
            yield Mend(daemon.id, words, put)


def _of_the_agent(found: Collection[str], manifest: Manifest) -> Iterator[Mend]:
    for id in ("cni-binary-missing", "cni-binary-not-executable", "cni-binary-version"):
        for file in manifest.of_role("binary") if id in found else ():
            words = f"put the CNI binary of this version at {file.path}"
            yield Mend(id, words, partial(_put_binary, manifest, Path(file.path)))
    # A package brings its unit to machines that were never made a node, too.
    if manifest.files and has_unit(manifest, "unit", UNIT) and systemd_runs():
        if "agent-silent" in found:
            yield Mend("agent-silent", f"systemctl start {UNIT}", lambda: systemctl("start", UNIT))
        elif "agent-version" in found:
            words = f"systemctl restart {UNIT}"
            yield Mend("agent-version", words, lambda: systemctl("restart", UNIT))


def _put_binary(manifest: Manifest, path: Path) -> None:
    manifest.put("binary", path, shim_path().read_bytes(), 0o755)
    path.chmod(0o755)


def _forget(bridge: str, address: Address) -> None:
    with RouteSocket() as route:
        route.apply(address_codec.delete_neighbour(route.ifindex(bridge), address, on=bridge))


def _set_up(ifname: str) -> None:
    with RouteSocket() as route:
        route.apply(link_codec.set_link(route.ifindex(ifname), what=ifname, up=True))


def _set_mac(ifname: str, mac: str) -> None:
    with RouteSocket() as route:
        route.apply(link_codec.set_link(route.ifindex(ifname), what=ifname, mac=mac))
