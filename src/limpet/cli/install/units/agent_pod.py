"""Whether the agent of this machine is a pod's, as that of Limpet's DaemonSet: then no unit starts
it, its settings are a ConfigMap, and its image brings the CNI binary."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from limpet.agent.client import agent_pid
from limpet.agent.settings import Settings
from limpet.base.configuration import AGENT_PATH
from limpet.base.errors import AgentUnavailable, LimpetError
from limpet.cli.install.files import DamagedRecordError, Manifest
from limpet.cli.install.joining import node_name
from limpet.cli.install.units.service import UNIT, systemd_runs


@dataclass(frozen=True, slots=True)
class AgentCare:
    """Who looks after the agent, and so what a person does about it."""

    start: str
    restart: str
    put_back: str
    """Files of the runtime's that are not there."""
    image_brings_binary: bool = False
    """The runtime's binary is that of an image, which need not be of this version."""


BY_UNIT = AgentCare(
    f"systemctl start {UNIT}; journalctl -u {UNIT} says why it ended",
    f"systemctl restart {UNIT} (pods do not notice)",
    "limpet install",
)


def find_care(settings: Settings) -> AgentCare:
    """As far as it can be seen: from the agent's process, else from what was installed."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return _by_pod(settings)
    is_pods = False
    try:
        # One that is not seen may be a service as well: it is this process that is shut in.
        is_pods = bool(container_process(settings.folders.socket))
    except LimpetError:
        with suppress(DamagedRecordError):  # whoever looks at that tells of it
            is_pods = is_left_by_pod(settings)
    if is_pods:
        return replace(_by_pod(settings), image_brings_binary=True)
    return BY_UNIT if systemd_runs() else replace(BY_UNIT, start="start it: limpet agent")


def _by_pod(settings: Settings) -> AgentCare:
    name = node_name(settings)
    pods = f"-l app.kubernetes.io/component=agent --field-selector spec.nodeName={name}"
    delete = f"kubectl -n limpet-system delete pod {pods}"
    return AgentCare(
        f"it is a pod's: kubectl -n limpet-system describe pod {pods} says why it does not run",
        f"ask one of its own version: limpet doctor --node {name}; or, where it is of an old one, "
        f"{delete} (other pods do not notice)",
        f"{delete}: the next one puts it there (other pods do not notice)",
    )


def keep_off(settings: Settings) -> str:
    """What keeps the DaemonSet off this node."""
    # Only here: who asks no API server does without its client.
    from limpet.kubernetes.pods import AGENT_LABEL, BY_SYSTEMD

    return f"kubectl label node {node_name(settings)} {AGENT_LABEL}={BY_SYSTEMD}"


def container_process(socket: Path) -> int | None:
    """The agent's, as it is numbered here, where it is in a container; 0: it is not seen from here.

    None: it runs beside this process. Raises: AgentUnavailable, NotAllowedError.
    """
    pid = agent_pid(socket)
    try:
        is_beside = pid and os.path.samefile(f"/proc/{pid}/ns/pid", "/proc/self/ns/pid")
    except FileNotFoundError as error:
        raise AgentUnavailable(f"ask the agent at {socket}: it has just ended") from error
    return None if is_beside else pid


def is_left_by_pod(settings: Settings) -> bool:
    """Nothing was installed here but what a pod's init container puts in place. Raises:
    StorageError."""
    manifest = Manifest.load(settings.folders.state_dir)
    others = [*manifest.of_role("config"), *manifest.of_role("unit")]
    return bool(manifest.files) and not others and not AGENT_PATH.exists()
