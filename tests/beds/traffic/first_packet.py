"""How long a node that knows no path takes: to a first packet, and to a direct path."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterable
from typing import Any

from limpet.lab.command import LabError
from limpet.lab.world.machine import Machine

_DIRECT = ("route", "vxlan", "tunnel")
_LOOK_EVERY_S = 0.02


class FirstPackets:
    """Within the block a node starts with no paths and no tunnel, and its pod pings others' pods.

    Times are seconds since its pod was there.
    """

    def __init__(self, node: Machine, targets: Iterable[Machine], *, within_s: float) -> None:
        """`within_s`: how long is waited for anything."""
        self._node = node
        self._targets = list(targets)
        self._within_s = within_s
        self._pings: dict[str, subprocess.Popen[str]] = {}
        self._began_s = self._wall_s = 0.0

    def __enter__(self) -> FirstPackets:
        """Raises: LabError."""
        node = self._node
        node.power_off()
        (node.disk / "state/cluster/paths.json").unlink(missing_ok=True)
        node.power_on()
        self._began_s, self._wall_s = time.monotonic(), time.time()
        source = next(iter(node.pods.values()))
        for target in self._targets:
            pod = next(iter(target.pods.values()))
            address = next(each.ip for each in pod.addresses if each.version == 4)
            self._pings[target.label] = subprocess.Popen(
                [
                    *("nsenter", f"--net={source.netns_path}", "ping", "-n", "-D", "-i", "0.02"),
                    str(address),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
        # Not by an option of ping: with one, an error that is told by a router ends it too.
        self._timer = threading.Timer(self._within_s, self._kill)
        self._timer.start()
        return self

    def _kill(self) -> None:
        for ping in self._pings.values():
            ping.kill()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for ping in self._pings.values():
            ping.kill()
            ping.wait()
            assert ping.stdout is not None
            ping.stdout.close()

    def first_s(self, target: Machine) -> float:
        """Until the target's pod answered. Raises: LabError."""
        output = self._pings[target.label].stdout
        assert output is not None
        for line in output:
            if "bytes from" in line:  # `[1700000000.123456] 64 bytes from …`
                return float(line[1 : line.index("]")]) - self._wall_s
        raise LabError(
            f"reach {target.label} from {self._node.label}: no answer in {self._within_s:g} s"
        )

    def direct_s(self, target: Machine) -> float:
        """Until the path to the target went by no relay. Raises: LabError."""
        while time.monotonic() < self._began_s + self._within_s:
            if self._rung(target) in _DIRECT:
                return time.monotonic() - self._began_s
            time.sleep(_LOOK_EVERY_S)
        raise LabError(
            f"reach {target.label} from {self._node.label}: by {self._rung(target) or 'no way'} "
            f"after {self._within_s:g} s, and not directly"
        )

    def _rung(self, target: Machine) -> str:
        peers: list[dict[str, Any]] = self._node.ask("peers")["peers"]
        return next((each["rung"] for each in peers if each["name"] == target.label), "")
