"""The controller's configuration file: TOML -> Settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from limpet.base.addresses import Prefix
from limpet.base.errors import ConfigError
from limpet.base.listen import Listen, parse_listen
from limpet.base.toml_file import checked_values, read_configuration
from limpet.cluster.api import name_problem
from limpet.cluster.kinds.network import DefaultCommunity, Network
from limpet.cluster.segments import network_problems

DEFAULT_PATH = Path("/etc/limpet/controller.toml")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_FIXED = ("cluster", "pod_cidrs", "segment_lengths")
"""Of a network: chosen once. Every segment was cut by them."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the controller; docs/controller.md says the same in words."""

    listen: tuple[Listen, ...] = (("::", 7470),)
    """Addresses and ports of the HTTPS API."""
    metrics_listen: tuple[Listen, ...] = ()
    """Where /metrics and /healthz are served in clear; empty: nowhere but on the admin socket."""
    state_dir: Path = Path("/var/lib/limpet/controller")
    socket: Path = Path("/run/limpet/controller.sock")
    quarantine_s: float = 7 * 86_400.0
    """How long segments rest after their node was removed, by the controller's clock."""
    restore_margin: int = 64
    """Segments of each family that are held back after a restore, at least."""
    patience_s: float = 30.0
    """For a request's body to come in, and for a watcher to take what it is told."""
    idle_s: float = 75.0
    """How long a connection may stay open without a request; agents keep theirs for the next."""
    log_level: str = "info"
    network: Network = field(
        default_factory=lambda: Network(
            cluster="limpet",
            generation=0,
            revision=0,
            keys=(),
            pod_cidrs=(ip_network("10.244.0.0/16"), ip_network("fd00:244::/48")),
        )
    )
    """What a cluster is made with; generation, revision and keys mean nothing."""
    default_community: DefaultCommunity | None = None
    """As the file says, at each start; None: a new cluster is flat, later `limpet network set`
    says."""

    @property
    def database(self) -> Path:
        return self.state_dir / "controller.db"


def load_settings(path: Path | None) -> ControllerSettings:
    """Settings of `path`; when None, of the file that LIMPET_CONTROLLER_CONFIG names, or of the
    default path.

    All defaults when nothing names a file and that one is not there.
    Raises: ConfigError that names value, field and file.
    """
    document, source = read_configuration(
        path, variable="LIMPET_CONTROLLER_CONFIG", default=DEFAULT_PATH
    )
    return parse_settings(document, source)


def parse_settings(document: Mapping[str, Any], source: str) -> ControllerSettings:
    """Raises: ConfigError that names value, field and `source`."""
    values = checked_values(document, {**_FIELDS, **_NETWORK_FIELDS}, source)
    defaults = ControllerSettings()
    lengths = {
        version: values.pop(f"segment_length_v{version}", length)
        for version, length in defaults.network.segment_lengths.items()
    }
    default_community = values.get("default_community")
    of_network = {key: values.pop(key) for key in tuple(values) if key in _NETWORK_FIELDS}
    network = replace(defaults.network, segment_lengths=lengths, **of_network)
    for problem in network_problems(network):
        raise ConfigError(f"read configuration {source}: {problem}")
    return ControllerSettings(**values, network=network, default_community=default_community)


def next_network(present: Network, settings: ControllerSettings) -> Network | None:
    """What the configuration makes of the cluster's network; None: nothing new.

    Raises: ConfigError for what is chosen once and differs.
    """
    wanted = settings.network
    for name in _FIXED:
        is_now, should_be = getattr(present, name), getattr(wanted, name)
        if is_now != should_be:
            raise ConfigError(
                f"read configuration: {name} = {_text(should_be)}, and the cluster was made with "
                f"{_text(is_now)}: its segments are cut by that, so it can't change (put it back, "
                "or make a new cluster in another state_dir)"
            )
    following = replace(
        wanted,
        generation=present.generation,
        revision=present.revision,
        keys=present.keys,
        default_community=settings.default_community or present.default_community,
        encryption=present.encryption,
        tunnel_backend=present.tunnel_backend,
        community_backends=present.community_backends,
    )
    return None if following == present else following


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"IPv{version} /{length}" for version, length in value.items())
    return str(value)


def _prefixes(value: Any) -> tuple[Prefix, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError('not a list of prefixes such as ["10.244.0.0/16"]')
    return tuple(map(ip_network, value))


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"not a whole number from {low} to {high}")
        return value

    return check


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e10:
        raise ValueError("not a number of seconds")
    return float(value)


def _positive_seconds(value: Any) -> float:
    if _seconds(value) == 0:
        raise ValueError("not a number of seconds above 0")
    return float(value)


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError("not an absolute path")
    return Path(value)


def _listen(value: Any) -> tuple[Listen, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ValueError('not an address and port such as "0.0.0.0:7470" or "[::]:7470"')
    return tuple(map(parse_listen, texts))


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a name")
    if problem := name_problem(value):
        raise ValueError(problem)
    return value


def _community(value: Any) -> DefaultCommunity:
    if value not in [each.value for each in DefaultCommunity]:
        raise ValueError('neither "all" nor "none"')
    return DefaultCommunity(value)


def _log_level(value: Any) -> str:
    if value not in _LOG_LEVELS:
        raise ValueError(f"not one of {', '.join(_LOG_LEVELS)}")
    return str(value)


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "listen": _listen,
    "metrics_listen": _listen,
    "state_dir": _path,
    "socket": _path,
    "quarantine_s": _seconds,
    "restore_margin": _whole(0, 100_000),
    "patience_s": _positive_seconds,
    "idle_s": _positive_seconds,
    "log_level": _log_level,
}
_NETWORK_FIELDS: dict[str, Callable[[Any], Any]] = {
    "cluster": _name,
    "pod_cidrs": _prefixes,
    "segment_length_v4": _whole(1, 32),
    "segment_length_v6": _whole(1, 128),
    "service_cidrs": _prefixes,
    "vxlan_id": _whole(1, (1 << 24) - 1),
    "vxlan_port": _whole(1, 65535),
    "default_community": _community,
    "segment_quota": _whole(1, 1024),
}
