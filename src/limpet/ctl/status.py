"""`limpet status`."""

from __future__ import annotations

from typing import Any

from limpet.agent.client import call
from limpet.ctl.output import Output, put, put_json, put_table
from limpet.model.settings import Settings


def print_status(settings: Settings, output: Output) -> int:
    """Exit code: 0 when the agent is ready, else 1. Raises: AgentUnavailable, LimpetError."""
    status = call(settings.socket, "status")
    if output is Output.JSON:
        put_json(status)
    else:
        _print_table(status)
    return 0 if status["ready"] else 1


def _print_table(status: dict[str, Any]) -> None:
    ready = "ready" if status["ready"] else f"not ready: {'; '.join(status['reasons'])}"
    put(f"agent {status['version']}, process {status['pid']}, up {_duration(status['uptime_s'])}")
    put(ready)
    put(f"{status['attachments']} pods attached, bridge {status['bridge']}")
    last = status["last_round"]
    put(
        f"last round: {last['changes']} changes, {len(last['failed'])} failed, "
        f"{last['took_ms']:.1f} ms"
    )
    for failure in last["failed"]:
        put(f"  failed: {failure}")
    if status["segments"]:
        put("")
        put_table(
            [{**segment, "segment": segment["prefix"]} for segment in status["segments"]],
            ("segment", "size", "live", "resting", "bound", "free"),
        )
    if status["networks"]:
        put("")
        put_table(
            [{**network, "network": network["name"]} for network in status["networks"]],
            ("network", "live", "bound"),
        )
    found = len(status["findings"]) + len(status["unknown_keys"])
    if found:
        put("")
        put(f"{found} findings; `limpet doctor` explains them")


def _duration(seconds: float) -> str:
    """In the two largest units."""
    rest = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
