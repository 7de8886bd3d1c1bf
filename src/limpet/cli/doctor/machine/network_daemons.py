"""Programs that set networks up, and whether they are told to leave Limpet's links alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from limpet.cli.doctor.findings import Finding, warn
from limpet.linux.namespaces import processes_here

_NETWORKD_FOLDERS = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")
"""The first counts of files with one name. Source: networkd.conf(5)."""
_NO = frozenset({"no", "n", "false", "f", "off", "0"})
"""Source: parse_boolean in systemd, and nm_config_parse_boolean in NetworkManager."""
_BY_NAME = "interface-name:"

Settings = dict[tuple[str, str], str]
"""By section and key."""


@dataclass(frozen=True, slots=True)
class NetworkDaemon:
    """A program that sets links up, and how it is told to leave ours alone."""

    id: str
    """Id of the finding."""
    name: str
    program: str
    """Its name among the processes. Folders in /run tell nothing: systemd makes networkd's on every
    machine, and they outlive the program."""
    is_told: Callable[[Path, str], bool]
    """Whether its settings below a root say all that `lines` do of a bridge."""
    harm: str
    file: str
    section: str
    lines: tuple[str, ...]

    def text(self, bridge: str) -> str:
        """What `file` should have."""
        lines = (line.format(bridge=bridge) for line in self.lines)
        return "\n".join([f"[{self.section}]", *lines]) + "\n"


def _networkmanager_is_told(root: Path, bridge: str) -> bool:
    """It leaves alone what `unmanaged-devices` names, and devices with `managed` off."""
    settings = _as_read(_networkmanager_files(root))
    named = _devices(settings.get(("keyfile", "unmanaged-devices"), ""))
    for (section, key), value in settings.items():
        if section.startswith("device") and key == "managed" and value.lower() in _NO:
            named += _devices(settings.get((section, "match-device"), ""))
    patterns = [
        each.removeprefix(_BY_NAME).removeprefix("~") for each in named if each.startswith(_BY_NAME)
    ]
    return all(
        any(fnmatchcase(wanted, pattern) for pattern in patterns) for wanted in ("lim*", bridge)
    )


def _networkd_is_told(root: Path, _bridge: str) -> bool:
    settings = _as_read(_networkd_files(root))
    keys = ("ManageForeignRoutes", "ManageForeignRoutingPolicyRules")
    return all(settings.get(("Network", key), "yes").lower() in _NO for key in keys)


NETWORK_DAEMONS = (
    NetworkDaemon(
        "networkmanager",
        "NetworkManager",
        "NetworkManager",
        _networkmanager_is_told,
        "it may take over pods' interfaces and their addresses",
        "/etc/NetworkManager/conf.d/limpet.conf",
        "keyfile",
        ("unmanaged-devices=interface-name:lim*;interface-name:{bridge}",),
    ),
    NetworkDaemon(
        "networkd",
        "systemd-networkd",
        "systemd-network",
        _networkd_is_told,
        "it removes routes and rules of others when it starts; the agent puts them back",
        "/etc/systemd/networkd.conf.d/limpet.conf",
        "Network",
        ("ManageForeignRoutes=no", "ManageForeignRoutingPolicyRules=no"),
    ),
)


def examine_network_daemons(bridge: str, root: Path = Path("/")) -> Iterator[Finding]:
    """`root`: of the daemons' settings."""
    for each in NETWORK_DAEMONS:
        if any(processes_here(each.program)) and not each.is_told(root, bridge):
            yield warn(
                each.id,
                f"{each.name} runs",
                each.harm,
                f"put into {each.file}: {' '.join(each.text(bridge).split())}",
            )


def _networkd_files(root: Path) -> Iterator[Path]:
    """In the order in which they are read: the first main file that there is, then the others by
    name, from whatever folder. Source: networkd.conf(5)."""
    folders = [root / each for each in _NETWORKD_FOLDERS]
    mains = [each / "networkd.conf" for each in folders]
    yield from [each for each in mains if each.is_file()][:1]
    further: dict[str, Path] = {}
    for folder in folders:
        for path in (folder / "networkd.conf.d").glob("*.conf"):
            further.setdefault(path.name, path)
    yield from (further[name] for name in sorted(further))


def _networkmanager_files(root: Path) -> Iterator[Path]:
    """In the order in which they are read: packages' and those of this boot come before the main
    file, and one of the same name in a later folder is read in place of them.

    Source: NetworkManager.conf(5).
    """
    own = root / "etc/NetworkManager"
    folders = [root / "usr/lib/NetworkManager/conf.d", root / "run/NetworkManager/conf.d"]
    folders.append(own / "conf.d")
    last = {path.name: path for folder in folders for path in folder.glob("*.conf")}
    for folder in folders:
        if folder.parent == own:
            yield own / "NetworkManager.conf"
        yield from sorted(path for path in last.values() if path.parent == folder)


def _as_read(files: Iterator[Path]) -> Settings:
    """What the last of them says of each key; a key that ends with a `+` is added to."""
    found: Settings = {}
    for path in files:
        section = ""
        for line in _lines(path):
            if line.startswith("["):
                section = line.strip("[]")
                continue
            key, _, value = (part.strip() for part in line.partition("="))
            name = (section, key.rstrip("+").strip())
            added = f"{found.get(name, '')};{value}" if key.endswith("+") else value
            found[name] = added
    return found


def _lines(path: Path) -> Iterator[str]:
    """Without empty ones and comments; none where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith(("#", ";")):
            yield line


def _devices(text: str) -> list[str]:
    return [each.strip() for each in text.replace(",", ";").split(";")]
