"""A test machine whose first process is systemd."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.clients.machine import Machine
from tests.waiting import wait_until


class ServiceMachine(Machine):
    """`argv` and `run` lead into the namespaces that systemd manages."""

    def boot(self) -> None:
        super().boot()
        script = Path(__file__).with_name("boot-systemd")
        entered = self.start(str(script), self.name)
        self.pid = wait_until(lambda: _systemd_below(entered.pid), "systemd is the first process")
        wait_until(
            lambda: self.try_run("systemctl", "is-system-running").stdout.strip() == "running",
            "systemd has started",
        )


def _systemd_below(pid: int) -> int:
    """0 until the program of the one descendant is systemd."""
    found = subprocess.run(
        ["pgrep", "--parent", str(pid), "--exact", "systemd"],
        capture_output=True,
        text=True,
        check=False,
    )
    return int(found.stdout or 0)
