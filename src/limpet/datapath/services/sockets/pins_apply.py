"""Where the programs and maps of Services are pinned and attached, and how they go."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from limpet.base.errors import KernelError
from limpet.datapath.services.sockets.layout import LAYOUT, NOTED_LAYOUT, NOTED_MAPS
from limpet.linux.bpf.attached import detach_pinned
from limpet.linux.bpf.place import is_bpffs

_RUN_DIR = Path("/run/limpet")
LINKS, MAPS, NOTED = "links", f"maps-{LAYOUT}", f"noted-{NOTED_LAYOUT}"
"""Folders below that of pins: of links, of maps that the agent fills, of those that programs
write."""
SENDING_PROGRAMS = ("limpet_connect4", "limpet_connect6", "limpet_sendmsg4", "limpet_sendmsg6")
"""Programs that lead a socket to an endpoint. The others show it the Service's address in place of
the endpoint's: they come before these and go after them."""
UNDER_WAY_S = 0.2
"""Seconds for answers to datagrams that have been led to an endpoint."""


@dataclass(frozen=True, slots=True)
class AttachPoint:
    """Where programs are attached and pinned."""

    pins: Path
    """A folder in a bpffs; it is made, and is ours."""
    cgroup: Path | None = None
    """Its processes are served, and those of all below; None: the root of the machine's."""


def map_folder(name: str) -> str:
    """The folder below that of pins in which that map is pinned."""
    return NOTED if name in NOTED_MAPS else MAPS


def forget_other_layouts(pins: Path) -> None:
    """Maps that no program looks at any more are gone."""
    for folder in _map_folders(pins):
        if folder.name not in (MAPS, NOTED):
            shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        for path in (pins / NOTED).iterdir():
            if path.name not in NOTED_MAPS:
                path.unlink(missing_ok=True)


def forget_other_links(pins: Path, programs: Collection[str]) -> None:
    """Links of other programs than these are pinned no more."""
    with suppress(OSError):
        for path in (pins / LINKS).iterdir():
            if path.name not in programs:
                path.unlink(missing_ok=True)


def pins_of(run_dir: Path) -> Path:
    """Where the agent with that run folder pins."""
    if is_bpffs(run_dir / "bpf"):
        return run_dir / "bpf" / "limpet"
    # A bpffs takes no dots in names.
    name = "" if run_dir == _RUN_DIR else str(run_dir).replace("/", "_").replace(".", "_")
    return Path(f"/sys/fs/bpf/limpet{name}")


def remove_links(pins: Path) -> None:
    """Detaches programs, in an order in which no answer shows which endpoint has sent it; 0.2 s
    if there are any. Raises: OSError."""
    links = pins / LINKS
    sending = [links / name for name in SENDING_PROGRAMS if (links / name).exists()]
    for path in sending:
        _remove_link(path)
    if sending:
        time.sleep(UNDER_WAY_S)
    for path in links.iterdir():
        _remove_link(path)


def _remove_link(path: Path) -> None:
    with suppress(KernelError):  # then it goes in a while, when nobody has it any more
        detach_pinned(path)
    path.unlink(missing_ok=True)


def remove_pins(pins: Path, *, keep: Collection[str] = ()) -> bool:
    """Programs are detached, maps are gone; whether there were any. `keep`: names of maps that
    programs write, which stay. Raises: KernelError."""
    folders = [each for each in (pins / LINKS, *_map_folders(pins)) if each.is_dir()]
    if not folders:
        return False
    kept = {path for name in keep if (path := pins / map_folder(name) / name).exists()}
    gone = [path for each in folders for path in each.iterdir() if path not in kept]
    try:
        if (pins / LINKS).is_dir():
            remove_links(pins)
        for path in gone:
            path.unlink(missing_ok=True)
        for folder in (*folders, pins):
            if not any(path.is_relative_to(folder) for path in kept):
                folder.rmdir()
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise KernelError("remove", f"eBPF pins in {pins}", error.errno or 0) from error
    return bool(gone)


def _map_folders(pins: Path) -> list[Path]:
    """Those of all layouts."""
    return sorted([*pins.glob("maps-*"), *pins.glob("noted-*")])
