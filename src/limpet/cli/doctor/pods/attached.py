"""Pods of this node as they are recorded, beside what the kernel has of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path

import msgspec

from limpet.agent.client import ask, call
from limpet.agent.settings import Settings
from limpet.agent.status.node import RecordCheck
from limpet.base.addresses import Address
from limpet.base.decoding import decode_plain_json
from limpet.base.disk import read_regular
from limpet.base.errors import AgentUnavailable, LimpetError
from limpet.base.text.few import few
from limpet.cli.doctor.findings import Finding, error, warn
from limpet.cli.output import counted
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.pod.attachment_codec import decode_attachment
from limpet.linux.netlink import address_codec
from limpet.linux.netlink.socket import RouteSocket

_MOST_NAMED = 3
_DOCKERS = Path("/var/lib/docker/containers")
_OF_KUBERNETES = "/k8s_POD_"
"""How cri-dockerd and dockershim begin the name of a pod's sandbox."""


def read_pods(settings: Settings) -> list[Attachment]:
    """In the order in which they were made: the agent tells, else its folder in /run."""
    try:
        documents = call(settings.folders.socket, "attachments")["attachments"]
        return [decode_attachment(msgspec.json.encode(each)) for each in documents]
    except (LimpetError, ValueError):
        return list(_recorded(settings.folders.run_dir / "attachments"))


def _recorded(folder: Path) -> Iterator[Attachment]:
    for path in sorted(folder.glob("*.json"), key=_made):
        try:
            yield decode_attachment(read_regular(path))
        except (OSError, ValueError):
            continue  # it has gone, or the agent tells of it


def _made(path: Path) -> tuple[int, Path]:
    try:
        return path.lstat().st_mtime_ns, path
    except OSError:
        return 0, path  # it has gone


def examine_leaks(settings: Settings) -> Iterator[Finding]:
    """Addresses that are held for nobody. Nothing where no agent answers: only it can tell."""
    try:
        leaks = ask(settings.folders.socket, "ipam.check", RecordCheck).leaks or []
    except AgentUnavailable:
        return
    if leaks:
        yield warn(
            "address-leaks",
            f"containers that are gone hold {counted(len(leaks), 'address')}: "
            f"{few((each.address for each in leaks), _MOST_NAMED)}",
            "the runtime has not said that they ended (it crashed, or the node did); pods do not "
            "get these addresses",
            "limpet ipam repair, which keeps what is kept for a pod",
        )


def stale_neighbours(pods: Iterable[Attachment]) -> list[tuple[str, Address, str, str]]:
    """Bridge, address, the MAC that the kernel has, and the pod's, where the two differ.

    Raises: KernelError.
    """
    found = []
    by_bridge: dict[str, dict[Address, str]] = {}
    for pod in pods:
        if pod.bridge is not None:
            macs = by_bridge.setdefault(pod.bridge.ifname, {})
            macs.update({each.ip: pod.link.mac for each in pod.addresses})
    with RouteSocket() as route:
        links = {link.ifname: link.ifindex for link in route.links().values()}
        for bridge, macs in by_bridge.items():
            if bridge not in links:
                continue
            for message in route.dump(address_codec.dump_neighbours(links[bridge])):
                entry = address_codec.parse_neighbour(message)
                if entry.ifindex != links[bridge] or not entry.usable:
                    continue
                address = ip_address(entry.destination)
                mac = macs.get(address, entry.mac)
                if mac != entry.mac:
                    found.append((bridge, address, entry.mac, mac))
    return found


def examine_neighbours(pods: Iterable[Attachment]) -> Iterator[Finding]:
    for bridge, address, has, mac in stale_neighbours(pods):
        yield error(
            "stale-neighbour",
            f"the node sends what is for {address} to {has}, and its pod has {mac}",
            "this node and others do not reach that pod: the entry is of a pod that had the "
            "address before, or somebody has set it",
            f"ip neigh del {address} dev {bridge}",
        )


def mtu_findings(
    pods: Iterable[Attachment], mtu_bytes: int, links: Iterable[int] = (), *, is_set: bool = False
) -> Iterator[Finding]:
    """`mtu_bytes`: that of the configuration where `is_set`, else the uplink's now. `links`: MTUs
    of those that lead to other nodes. Pure."""
    uplink_bytes = max(links, default=0)
    is_too_large = is_set and 0 < uplink_bytes < mtu_bytes
    most_bytes = uplink_bytes if is_too_large else mtu_bytes
    large = [pod for pod in pods if pod.bridge is not None and pod.link.mtu_bytes > most_bytes]
    if large and most_bytes:
        names = few((pod.pod.name or pod.holder.container_id for pod in large), _MOST_NAMED)
        found_bytes = max(pod.link.mtu_bytes for pod in large)
        by_setting = is_set and not is_too_large
        where = "mtu_bytes of the configuration says" if by_setting else "the uplink has"
        first = "set a smaller mtu_bytes, then " if is_too_large else ""
        yield warn(
            "pod-mtu",
            f"{counted(len(large), 'pod')} with an MTU of up to {found_bytes}, where {where} "
            f"{most_bytes} now: {names}",
            "they learn of it by ICMP for each address; where a firewall drops that, large "
            "packets get lost",
            f"{first}restart them: a pod's MTU is fixed for its life",
        )


def examine_docker(containers: Path = _DOCKERS) -> Iterator[Finding]:
    """Kubernetes' pods that Docker has put on its own bridge."""
    found = []
    for folder in sorted(containers.glob("*")):
        try:
            name = decode_plain_json(read_regular(folder / "config.v2.json"))["Name"]
            mode = decode_plain_json(read_regular(folder / "hostconfig.json"))["NetworkMode"]
        except (OSError, msgspec.MsgspecError, KeyError, TypeError):
            continue
        if str(name).startswith(_OF_KUBERNETES) and mode in ("default", "bridge"):
            found.append(str(name).removeprefix(_OF_KUBERNETES))
    if found:
        yield error(
            "pods-on-docker",
            f"Docker's own bridge has {counted(len(found), 'pod')} of Kubernetes: "
            f"{few(found, _MOST_NAMED)}",
            "they have addresses of Docker's, which other nodes do not reach, and which a pod of "
            "another node may have too",
            "tell who starts them to use CNI (cri-dockerd: --network-plugin=cni; KubeEdge: "
            "networkPluginName: cni in edgecore.yaml), and start those pods anew",
        )
