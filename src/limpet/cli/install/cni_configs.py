"""The CNI configurations that a folder holds, in the order in which runtimes take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import msgspec

from limpet.base.addresses import Prefix
from limpet.base.decoding import decode_plain_json
from limpet.base.disk import cause, read_regular
from limpet.base.errors import StorageError
from limpet.cni.protocol.ipam import OWN_TYPE

_EXTENSIONS = (".conf", ".conflist", ".json")
"""Source: ConfFiles in libcni, and loadFromConfDir in containerd's go-cni."""


@dataclass(frozen=True, slots=True)
class CniConfig:
    """One configuration file, as far as it concerns us."""

    path: Path
    name: str = ""
    plugins: tuple[str, ...] = ()
    """Types, in their order."""
    bridges: tuple[str, ...] = ()
    """Bridges of the reference bridge plugin and of flannel's."""
    own_bridges: tuple[str, ...] = ()
    """Bridges that it names for Limpet's plugin; where it names none, the agent's is used."""
    subnets: tuple[Prefix, ...] = ()
    """Addresses that it gives out itself."""
    problem: str = ""
    """Why a runtime cannot use it."""


def read_cni_configs(folder: Path) -> list[CniConfig]:
    """Sorted as runtimes sort them. They use the first; where that cannot be used, CRI-O the next
    that can, and containerd none.

    Empty where there is no such folder. Raises: StorageError.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in _EXTENSIONS)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError("read folder", str(folder), cause(error)) from error
    return [_read(path) for path in paths]


def _read(path: Path) -> CniConfig:
    try:
        return parse_cni_config(path, read_regular(path))
    except OSError as error:
        return CniConfig(path, problem=f"cannot be read: {error}")


def parse_cni_config(path: Path, content: bytes) -> CniConfig:
    """What `path` says, or said, with that content."""
    try:
        document = decode_plain_json(content)
    except msgspec.MsgspecError as error:
        return CniConfig(path, problem=f"cannot be read: {error}")
    if not isinstance(document, dict):
        return CniConfig(path, problem="is not a JSON object")
    listed = document.get("plugins", [document] if path.suffix != ".conflist" else [])
    plugins = [plugin for plugin in _items(listed) if isinstance(plugin, dict)]
    types = tuple(str(plugin.get("type", "")) for plugin in plugins)
    if not types or "" in types:
        return CniConfig(path, str(document.get("name", "")), problem="names no plugin")
    return CniConfig(
        path,
        str(document.get("name", "")),
        types,
        bridges=tuple(dict.fromkeys(_bridges(plugins))),
        own_bridges=tuple(str(each["bridge"]) for each in plugins if _names_our_bridge(each)),
        subnets=tuple(subnet for plugin in plugins for subnet in _subnets(plugin.get("ipam"))),
    )


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else []


def _bridges(plugins: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for plugin in plugins:
        if plugin.get("type") == "bridge":
            # Source: defaultBrName in plugins/main/bridge/bridge.go.
            yield str(plugin.get("bridge") or "cni0")
        elif plugin.get("type") == "flannel":
            delegate = plugin.get("delegate")
            yield str((delegate if isinstance(delegate, dict) else {}).get("bridge") or "cni0")


def _names_our_bridge(plugin: Mapping[str, Any]) -> bool:
    return plugin.get("type") == OWN_TYPE and bool(plugin.get("bridge"))


def _subnets(ipam: Any) -> Iterator[Prefix]:
    if not isinstance(ipam, dict):
        return
    ranges = [entry for group in _items(ipam.get("ranges")) for entry in _items(group)]
    for entry in [ipam, *ranges]:
        if isinstance(entry, dict) and isinstance(entry.get("subnet"), str):
            try:
                yield ip_network(entry["subnet"], strict=False)
            except ValueError:
                continue
