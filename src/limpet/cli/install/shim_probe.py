"""Whether the installed CNI binary reaches the agent: asked of the binary itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

_TIMEOUT_S = 30.0
"""The binary answers STATUS sooner, unless the agent is there and does not answer."""
_WAIT_S = 1.0
"""Whoever asks here wants to know how it is now; a runtime's STATUS waits for a restart."""


def status_through(binary: Path, network_name: str) -> str:
    """What STATUS of the network says through the binary; empty when all is well.

    In an environment that says nothing of the agent, as a runtime's may be: what counts is what the
    binary finds by itself.
    """
    conf = {
        "cniVersion": "1.1.0",
        "name": network_name,
        "type": "limpet",
        "ipam": {"type": "limpet"},
    }
    try:
        done = subprocess.run(
            [binary],
            env={
                "CNI_COMMAND": "STATUS",
                "CNI_PATH": str(binary.parent),
                "LIMPET_WAIT_S": str(_WAIT_S),
            },
            input=json.dumps(conf),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else _words(done.stdout) or f"exit code {done.returncode}"


def _words(answer: str) -> str:
    try:
        document = json.loads(answer)
        details = document.get("details")
        return f"{document['msg']} ({details})" if details else str(document["msg"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return answer.strip()
