"""`limpet install --take-over flannel`, and the way back.

flannel's devices carry the node's packets until Limpet's agent knows the other nodes; then they
go, and the agent makes its own in their place, with their MACs: so the other nodes notice nothing.
"""

from __future__ import annotations

import errno
import time
from pathlib import Path

from limpet.agent.client import ask
from limpet.agent.settings import Settings
from limpet.agent.status.node import Status
from limpet.agent.status.paths import Peers
from limpet.base.disk import remove_durably
from limpet.base.errors import AgentUnavailable, LimpetError
from limpet.base.ownership import POD_GROUP, VXLAN_GROUPS
from limpet.cli.install.flannel.aside import (
    Aside,
    forget_aside,
    load_aside,
    note_aside,
    put_files_back,
)
from limpet.cli.install.flannel.devices import read_devices, remove_devices, restore_device
from limpet.cli.install.flannel.found import SUBNET_FILE, Flannel
from limpet.cli.install.flannel.main_first import drop_main_first, put_main_first
from limpet.cli.install.flannel.rules import remove_rules, restore_rules, save_rules
from limpet.datapath.overlay.vtep import VTEP_FILE, adopt_vtep_macs
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import RouteSocket

_HEARD_S = 30.0
"""Seconds that the agent has to hear of the other nodes."""
_PATHS_S = 5.0
"""Seconds more that it has to find ways to them: some may be off."""
_ASK_AGAIN_S = 0.05


def note_flannel(settings: Settings, found: Flannel) -> Aside:
    """What it has is on the disk, and its MACs are those of Limpet's devices to come.

    Raises: LimpetError.
    """
    state_dir = settings.folders.state_dir
    aside = note_aside(
        state_dir, (*found.conflists, SUBNET_FILE), list(found.devices), save_rules()
    )
    adopt_vtep_macs(settings.folders.cluster_dir / VTEP_FILE, aside.macs)
    return aside


def keep_flannels_routes(found: Flannel) -> None:
    """Until `switch`. Raises: KernelError."""
    with RouteSocket() as route:
        put_main_first(route, {device.version for device in found.devices})


def switch(settings: Settings, aside: Aside, *, force: bool) -> list[str]:
    """flannel's devices go, once the agent knows the others. Raises: LimpetError, and then they
    are there as before."""
    _await_peers(settings, force=force)
    with RouteSocket() as route:
        drop_main_first(route)
        removed = remove_devices(route, [each.ifname for each in aside.devices])
    return [f"link {ifname}: put aside" for ifname in removed]


def _await_peers(settings: Settings, *, force: bool) -> None:
    """Raises: LimpetError."""
    heard_by_s = time.monotonic() + _HEARD_S
    paths_by_s = 0.0
    while True:
        why = ""
        try:
            cluster = ask(settings.folders.socket, "status", Status).cluster
            peers = ask(settings.folders.socket, "peers", Peers).peers
        except AgentUnavailable as error:
            why = str(error)
        else:
            if cluster is None or not cluster.controller.connected:
                why = cluster.controller.error if cluster is not None else "it is in no cluster"
            else:
                paths_by_s = paths_by_s or time.monotonic() + _PATHS_S
                # A node that runs flannel always has a path; its route waits for the device.
                if all(each.rung for each in peers) or time.monotonic() > paths_by_s:
                    return
        if time.monotonic() > heard_by_s:
            if force:
                return
            raise LimpetError(
                "take flannel's devices away: the agent has not heard of the other nodes: "
                f"{why or 'nothing was said'} (they stay, and pods go on; let it reach its "
                "controller, then give the same command again, or --force)"
            )
        time.sleep(_ASK_AGAIN_S)


def put_rest_aside(conflists: tuple[Path, ...]) -> list[str]:
    """Its files and rules, when Limpet's configuration is in place. Raises: LimpetError."""
    said = []
    for path in (*conflists, SUBNET_FILE):
        if remove_durably(path):
            said.append(f"{path}: put aside")
    # Those that are there: an earlier attempt, or a reboot, may have taken them.
    rules = save_rules()
    remove_rules(rules)
    said += [f"flannel's chains of {program}: put aside" for program in rules]
    return said


# The way back


def give_back_files(state_dir: Path) -> list[str]:
    """First of all: the runtime takes flannel's configuration again, since it sorts first.

    Raises: LimpetError.
    """
    aside = load_aside(state_dir)
    return put_files_back(aside) if aside is not None else []


def give_back_devices(state_dir: Path) -> list[str]:
    """In place of ours; its routes are in the main table, and count once ours are gone.

    Raises: LimpetError.
    """
    aside = load_aside(state_dir)
    if aside is None:
        return []
    said = []
    with RouteSocket() as route:
        there = {each.ifname for each in read_devices(route)}
        for link in route.links().values():
            if link.kind == "vxlan" and link.group in VXLAN_GROUPS.values():
                route.apply(link_codec.delete_link(link.ifindex, what=link.ifname))
        for device in aside.devices:
            if device.ifname not in there:
                restore_device(route, device)
                said.append(f"link {device.ifname}: given back to flannel")
        said += _give_back_pods(route)
    restore_rules(aside.rules)
    said += [f"flannel's chains of {program}: given back" for program in aside.rules]
    return said


def _give_back_pods(route: RouteSocket) -> list[str]:
    """Their links lose our mark: flannel's plugin removes them with the pods, and neither another
    uninstall nor the agent of another take-over may do so before. Raises: KernelError."""
    links = [each for each in route.links().values() if each.group == POD_GROUP]
    for link in links:
        gone = (errno.ENODEV,)  # with its pod
        route.apply(link_codec.set_link(link.ifindex, what=link.ifname, group=0, ignore_errno=gone))
    return [f"links of pods, {len(links)}: given back to flannel"] if links else []


def finish_giving_back(state_dir: Path, name: str) -> list[str]:
    """Raises: StorageError."""
    forget_aside(state_dir)
    return [
        "flannel: start it (systemctl enable --now flanneld, or let its DaemonSet onto this node "
        f"again), then, where Limpet's controller runs: limpet node remove {name}"
    ]
