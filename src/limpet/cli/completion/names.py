"""`limpet __complete KIND [CONFIG]`: names that completion asks for while somebody types.

It has a tenth of a second, so no command is loaded, nobody outside of this machine is asked, and
whatever goes wrong is silence.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from limpet.base.configuration import (
    AGENT_PATH,
    AGENT_SOCKET,
    AGENT_VARIABLE,
    CONTROLLER_PATH,
    CONTROLLER_SOCKET,
    CONTROLLER_VARIABLE,
    read_configuration,
)
from limpet.cli.output import put

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,600}")
"""A shell puts the name into a command line, so nothing that it would take for more than a name."""
_MOST = 2000
"""Names; nobody reads more."""


def main(arguments: Sequence[str]) -> int:
    """Prints names, a line each. Exit code 0, always."""
    kind, config = ([*arguments, "", ""])[:2]
    with contextlib.suppress(Exception):
        found = _KINDS[kind](Path(config) if config else None)
        names = sorted({each for each in found if _PLAIN.fullmatch(each)})
        for name in names[:_MOST]:
            put(name)
    return 0


def _agent(config: Path | None, verb: str) -> dict[str, Any]:
    from limpet.agent.client import call

    where = _socket(config, variable=AGENT_VARIABLE, default=AGENT_PATH, socket=AGENT_SOCKET)
    return call(where, verb)


def _controller(config: Path | None, verb: str) -> dict[str, Any]:
    from limpet.controller.admin.client import call

    where = _socket(
        config, variable=CONTROLLER_VARIABLE, default=CONTROLLER_PATH, socket=CONTROLLER_SOCKET
    )
    return call(where, verb)


def _socket(config: Path | None, *, variable: str, default: Path, socket: Path) -> Path:
    """Where it answers. To load what checks all settings takes longer than all the rest."""
    document, _ = read_configuration(config, variable=variable, default=default)
    return Path(document.get("socket", socket))


def _nodes(config: Path | None) -> Iterable[str]:
    """As the controller has them; where none runs, those that the agent knows."""
    from limpet.base.errors import LimpetError

    try:
        return [each["name"] for each in _controller(config, "node.list")["nodes"]]
    except LimpetError:
        return [each["name"] for each in _agent(None, "peers")["peers"]]


def _communities(config: Path | None) -> Iterable[str]:
    return [each["name"] for each in _controller(config, "community.list")["communities"]]


def _tokens(config: Path | None) -> Iterable[str]:
    return [each["id"] for each in _controller(config, "token.list")["tokens"]]


def _pods(config: Path | None) -> Iterable[str]:
    records = _agent(config, "ipam.list")["records"]
    return [f"{each['pod_namespace']}/{each['pod']}" for each in records if each["pod"]]


def _networks(config: Path | None) -> Iterable[str]:
    return [each["name"] for each in _agent(config, "status")["networks"]]


def _services(config: Path | None) -> Iterable[str]:
    services = _agent(config, "services")["services"]
    return [f"{each['namespace']}/{each['name']}" for each in services]


def _policies(config: Path | None) -> Iterable[str]:
    policies = _agent(config, "policy.list")["policies"]
    return [f"{each['namespace']}/{each['name']}" for each in policies]


def _topologies(_config: Path | None) -> Iterable[str]:
    import limpet

    folder = Path(limpet.__file__).parent / "lab" / "topologies"
    return [each.stem for each in folder.glob("*.toml")]


def _worlds(_config: Path | None) -> Iterable[str]:
    return [each.name for each in Path("/run/limpet-lab").iterdir()]


_KINDS: dict[str, Callable[[Path | None], Iterable[str]]] = {
    "node": _nodes,
    "community": _communities,
    "token": _tokens,
    "pod": _pods,
    "network": _networks,
    "service": _services,
    "policy": _policies,
    "topology": _topologies,
    "world": _worlds,
}
