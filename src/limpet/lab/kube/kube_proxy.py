"""kube-proxy of a node, in one of its modes: Services go from it to Limpet, and back."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from limpet.lab.command import run_command
from limpet.lab.kube.programs import find_programs
from limpet.lab.process import Daemon

Mode = Literal["nftables", "iptables"]
_HEALTH_PORT = 10256
_WITHIN_S = 60.0


class KubeProxy:
    """In the network namespace of a node; what it has put into the kernel outlives it."""

    def __init__(
        self,
        netns: str,
        folder: Path,
        kubeconfig: Path,
        *,
        node: str,
        mode: Mode,
        iptables: Path | None = None,
    ) -> None:
        """`iptables`: a folder in which it is unpacked (bin, usr/lib/*/xtables); None: the
        machine's own is used."""
        self.mode: Mode = mode
        self._netns = f"/run/netns/{netns}"
        folder.mkdir(parents=True, exist_ok=True)
        self.process = Daemon("kube-proxy", folder / "proxy.pid", folder / "proxy.log")
        self._words = [
            *("nsenter", f"--net={self._netns}"),
            str(find_programs("kube-proxy") / "kube-proxy"),
        ]
        self._flags = [
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={node}",
            f"--proxy-mode={mode}",
            f"--healthz-bind-address=127.0.0.1:{_HEALTH_PORT}",
            # The machine's own limits are no namespace's to change.
            *("--conntrack-max-per-core=0", "--conntrack-min=0"),
            *("--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"),
        ]
        self._environment = {} if iptables is None else _with_iptables(iptables)

    def start(self, *, within_s: float = _WITHIN_S) -> None:
        """Returns when it answers; its rules come a little later. Raises: LabError with its log."""
        self.process.start_and_ask(
            [*self._words, *self._flags],
            self._answers,
            within_s=within_s,
            environment=self._environment,
        )

    def clean_up(self) -> None:
        """As a person does it who has ended it: its rules go, of all its modes.

        Raises: LabError.
        """
        environment = [f"{name}={value}" for name, value in self._environment.items()]
        run_command("env", *environment, *self._words, "--cleanup")

    def _answers(self) -> bool:
        """Whether it listens, by what the kernel tells of its namespace."""
        pid = self.process.pid
        with suppress(FileNotFoundError):
            table = Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii")
            return f":{_HEALTH_PORT:04X} 00000000:0000 0A" in table
        return False


def _with_iptables(folder: Path) -> dict[str, str]:
    modules = next(folder.glob("usr/lib/*/xtables"))
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}", "XTABLES_LIBDIR": str(modules)}
