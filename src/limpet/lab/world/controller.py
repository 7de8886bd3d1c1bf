"""The IP controller of a world: the real one, in a process of its own, in the cloud's namespace."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limpet.controller.admin.client import call
from limpet.lab.command import run_command
from limpet.lab.files import write_settings
from limpet.lab.process import Daemon
from limpet.lab.world.site import Interface

PORT = 7470
_TOKEN_TTL_S = 3600


class LabController:
    """`limpet controller`, with everything in one folder but its socket."""

    def __init__(
        self, netns: str, folder: Path, addresses: tuple[Interface, ...], **settings: Any
    ) -> None:
        """`settings` are keys of its configuration; paths are filled in."""
        self.netns = netns
        self.folder = folder
        self.run_dir = Path("/dev/shm") / netns
        self.socket = self.run_dir / "controller.sock"
        self.config_path = folder / "controller.toml"
        self.settings: Mapping[str, Any] = {
            "state_dir": str(folder / "state"),
            "socket": str(self.socket),
            "listen": [f"[::]:{PORT}"],
            **settings,
        }
        self.endpoints = [
            f"[{each.ip}]:{PORT}" if each.version == 6 else f"{each.ip}:{PORT}"
            for each in addresses
        ]
        """`host:port` of each of its addresses."""
        self.process = Daemon("controller", folder / "controller.pid", folder / "controller.log")

    def start(self) -> None:
        """Returns when it says that it is ready. Raises: LabError with its log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_settings(self.config_path, self.settings)
        self.process.start(
            [
                *("nsenter", f"--net=/run/netns/{self.netns}"),
                *(sys.executable, "-m", "limpet", "controller"),
                *("--config", str(self.config_path)),
            ],
            notify=self.run_dir / "notify.sock",
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it, if it runs, and waits for it. Raises: LabError."""
        self.process.stop(number)

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """An admin verb. Raises: ControllerUnavailable, LimpetError."""
        return call(self.socket, verb, **arguments)

    def token(self, **arguments: Any) -> str:
        """Lets one node in. Raises: ControllerUnavailable, LimpetError."""
        wanted = {
            "ttl_s": _TOKEN_TTL_S,
            "roles": ["edge"],
            "communities": [],
            "labels": {},
            **arguments,
        }
        return str(self.ask("token.create", **wanted)["token"])

    def command(self, *words: str) -> str:
        """What `limpet WORDS` prints, as a person asks it in the cloud. Raises: LabError."""
        return run_command(
            *(sys.executable, "-m", "limpet", *words, "--config", str(self.config_path)),
            netns=self.netns,
        )
