"""The agent's configuration file: TOML -> Settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from limpet.base.addresses import Address, Prefix
from limpet.base.errors import ConfigError
from limpet.base.listen import Listen, parse_listen
from limpet.base.settings import NAT_TIMEOUT_S, Settings
from limpet.base.toml_file import checked_values, read_configuration
from limpet.cni.protocol.conf import ifname_problem

DEFAULT_PATH = Path("/etc/limpet/agent.toml")
_LONGEST_SEGMENT = {4: 30, 6: 126}
"""A segment holds a gateway and at least one pod."""
_LOG_LEVELS = ("debug", "info", "warning", "error")


def load_settings(path: Path | None) -> Settings:
    """Settings of `path`; when None, of the file that LIMPET_CONFIG names, or of the default path.

    All defaults when nothing names a file and that one is not there.
    Raises: ConfigError that names value, field and file.
    """
    document, source = read_configuration(path, variable="LIMPET_CONFIG", default=DEFAULT_PATH)
    return parse_settings(document, source)


def parse_settings(document: Mapping[str, Any], source: str) -> Settings:
    """Raises: ConfigError that names value, field and `source`."""
    values = checked_values(document, _FIELDS, source)
    settings = Settings(**values)
    _check_overlaps(settings, source)
    if settings.segments and not settings.cni:
        raise ConfigError(
            f"read configuration {source}: cni = false, and segments = "
            f"{[str(each) for each in settings.segments]}: a node that attaches no pods needs none "
            "(take one of the two out; the cluster grants it an address of its own)"
        )
    return settings


def _check_overlaps(settings: Settings, source: str) -> None:
    seen: list[Prefix] = []
    for segment in settings.segments:
        for other in seen:
            if segment.version == other.version and segment.overlaps(other):
                raise ConfigError(
                    f"read configuration {source}: segments: {segment} overlaps {other}"
                )
        seen.append(segment)


def _prefix(value: Any) -> Prefix:
    if not isinstance(value, str):
        raise ValueError('not a prefix such as "10.244.7.0/24"')
    return ip_network(value)


def _prefixes(value: Any) -> tuple[Prefix, ...]:
    if not isinstance(value, list):
        raise ValueError('not a list of prefixes such as ["10.244.7.0/24"]')
    return tuple(map(_prefix, value))


def _segments(value: Any) -> tuple[Prefix, ...]:
    segments = _prefixes(value)
    for segment in segments:
        longest = _LONGEST_SEGMENT[segment.version]
        if segment.prefixlen > longest:
            raise ValueError(f"{segment} is too small: at most /{longest}")
        if segment.is_multicast or segment.is_loopback or segment.is_link_local:
            raise ValueError(f"{segment} is multicast, loopback or link-local, not for pods")
    return segments


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"not a whole number from {low} to {high}")
        return value

    return check


def _seconds(low: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value < 1e9:
            raise ValueError(f"not a number of seconds from {low:g}")
        return float(value)

    return check


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError("not an absolute path")
    return Path(value)


def _bridge(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("not an interface name of 1 to 15 characters")
    if problem := ifname_problem(value):
        raise ValueError(problem)
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ValueError("not a list of texts")
    return tuple(value)


def _listen(value: Any) -> tuple[Listen, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ValueError('not a list of addresses with ports such as ["127.0.0.1:9471"]')
    return tuple(map(parse_listen, texts))


def _endpoints(value: Any) -> tuple[tuple[Address, int], ...]:
    found: list[tuple[Address, int]] = []
    for address, port in _listen(value):
        at = ip_address(address) if address else None
        if at is None or at.is_unspecified or at.is_loopback or at.is_multicast:
            raise ValueError(f"{address or port} is no address that others reach")
        if (at, port) in found:
            raise ValueError(f"{address} port {port} is there twice")
        found.append((at, port))
    return tuple(found)


def _ports(value: Any) -> tuple[int, int]:
    hint = "not a first and a last port such as [21000, 22999]"
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(hint)
    first, last = (_whole(1024, 65535)(each) for each in value)
    if last <= first:
        raise ValueError(hint)
    return first, last


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("not a text")
    return value


def _log_level(value: Any) -> str:
    if value not in _LOG_LEVELS:
        raise ValueError(f"not one of {', '.join(_LOG_LEVELS)}")
    return str(value)


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "segments": _segments,
    "cluster_cidrs": _prefixes,
    "bridge": _bridge,
    "mtu_bytes": _whole(576, 65535),
    "overlay_bytes": _whole(0, 200),
    "data_dir": _path,
    "state_dir": _path,
    "run_dir": _path,
    "socket": _path,
    "rest_s": _seconds(0),
    "resync_s": _seconds(1),
    "allow_forward": _flag,
    "cni": _flag,
    "peer_port": _whole(1, 65535),
    "underlay_links": _texts,
    "tunnel_ifname": _bridge,
    "tunnel_port": _whole(0, 65535),
    "tunnel_endpoints": _endpoints,
    "tunnel_program": _text,
    "ipsec_program": _text,
    "nat_timeout_s": _whole(4, NAT_TIMEOUT_S),
    "port_mapping": _flag,
    "relay_ports": _ports,
    "relay_tls_listen": _listen,
    "relay_pairs_per_node": _whole(1, 10_000),
    "relay_bytes_per_s": _whole(0, 10**12),
    "metrics_listen": _listen,
    "log_level": _log_level,
}
