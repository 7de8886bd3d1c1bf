"""A site's link to the backbone: how fast it is, how long it takes, what it loses."""

from __future__ import annotations

import sys
from pathlib import Path

from limpet.lab.command import LabError, run_command
from limpet.lab.netns import delete_namespace
from limpet.lab.process import Daemon
from limpet.lab.world.nat import WAN
from limpet.lab.world.site import LabSite
from limpet.lab.world.tunnels import run_folder
from limpet.lab.world.wires import Wires, connect, create_namespace, pull_cable

_BURST_BYTES, _QUEUE_MS = 64_000, 50
"""Burst of a limited link, and how long a packet waits there at most."""
_UNDERWAY_PACKETS = 100_000
"""Packets on their way in netem, which loses more: as many as 1 Gbit/s has in a second."""
_OUTSIDE, _INSIDE = "outside", "inside"
_SILENT = {"ipv6/conf/all/disable_ipv6": 1, "ipv6/conf/default/disable_ipv6": 1}
_TUNNELLED = ("tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation")
"""Offloads of packets inside others, several in one: no virtio_net_hdr of older kernels says so."""


class Uplink:
    """One cable, or two with a process between them where frames have to be late."""

    def __init__(self, wires: Wires, site: LabSite, folder: Path) -> None:
        """Describes it; `lay` makes it. `folder`: of the process."""
        self._wires = wires
        self._site = site
        self._folder = folder
        self.process = Daemon(f"link of {site.name}", folder / "link.pid", folder / "link.log")

    def lay(self, gateway: str) -> None:
        """From the backbone to WAN of the outer gateway, a namespace. Raises: LabError."""
        site = self._site
        backbone_end, gateway_end = (self._wires.backbone, site.name), (gateway, WAN)
        by_kernel = not site.uplink.is_late or has_netem(gateway)
        if by_kernel:
            connect(backbone_end, gateway_end, site.uplink.mtu_bytes)
        else:
            self._lay_line(backbone_end, gateway_end)
        for netns, ifname in (backbone_end, gateway_end):
            if site.uplink.is_late and by_kernel:
                delay(netns, ifname, site.uplink.delay_ms, site.uplink.loss_percent)
            if site.uplink.rate_mbit:
                parent = ("parent", "1:1") if site.uplink.is_late and by_kernel else ("root",)
                limit_rate(netns, ifname, site.uplink.rate_mbit, parent)

    def _lay_line(self, *ends: tuple[str, str]) -> None:
        site, line = self._site, self._wires.line(self._site)
        create_namespace(line, _SILENT)
        for end, own in zip(ends, (_OUTSIDE, _INSIDE), strict=True):
            connect(end, (line, own), site.uplink.mtu_bytes)
            netns, ifname = end
            offs = (word for name in _TUNNELLED for word in (name, "off"))
            run_command("ethtool", "-K", ifname, *offs, netns=netns)
        self._folder.mkdir(parents=True, exist_ok=True)
        self.process.start(
            [
                *("nsenter", f"--net=/run/netns/{line}"),
                *(sys.executable, "-m", "limpet.lab.world.delay", _OUTSIDE, _INSIDE),
                *(
                    "--delay-ms",
                    str(site.uplink.delay_ms),
                    "--loss-percent",
                    str(site.uplink.loss_percent),
                ),
            ],
            notify=run_folder(line) / "notify.sock",
        )

    def take_up(self) -> None:
        """Removes all of it. Raises: LabError."""
        self.process.kill()
        pull_cable(self._wires.backbone, self._site.name)
        line = self._wires.line(self._site)
        pull_cable(line, _INSIDE)
        delete_namespace(line)


def has_netem(netns: str) -> bool:
    """Whether the kernel has netem, tried in a namespace that nobody uses yet."""
    try:
        run_command("tc", "qdisc", "add", "dev", "lo", "root", "netem", netns=netns)
    except LabError:
        return False
    run_command("tc", "qdisc", "del", "dev", "lo", "root", netns=netns)
    return True


def delay(netns: str, ifname: str, delay_ms: int, loss_percent: int) -> None:
    """Delays what a device sends, and loses some of it. Raises: LabError."""
    run_command(
        *("tc", "qdisc", "replace", "dev", ifname, "root", "handle", "1:", "netem"),
        *("limit", str(_UNDERWAY_PACKETS), "delay", f"{delay_ms}ms", "loss", f"{loss_percent}%"),
        netns=netns,
    )


def limit_rate(netns: str, ifname: str, rate_mbit: int, parent: tuple[str, ...]) -> None:
    """Limits what a device sends. `parent`: `root`, or a qdisc's class. Raises: LabError."""
    run_command(
        *("tc", "qdisc", "replace", "dev", ifname, *parent, "tbf", "rate", f"{rate_mbit}mbit"),
        *("burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms"),
        netns=netns,
    )
