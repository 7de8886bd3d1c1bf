"""Asking the process that answers names on this node."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from limpet.agent.client import typed
from limpet.base.errors import LimpetError, why_no_answer
from limpet.dns.handover.words import encode_request
from limpet.dns.status.answers import NamesSaid

_SOCKET = "dns.sock"
_ANSWER_S = 10.0


Kind = TypeVar("Kind", bound=NamesSaid)


def ask_names(run_dir: Path, request: Mapping[str, str], kind: type[Kind]) -> Kind:
    """What it answers. Raises: LimpetError; AnotherVersion."""
    path = run_dir / _SOCKET
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(_ANSWER_S)
            client.connect(str(path))
            client.sendall(encode_request(request))
            received = b""
            while chunk := client.recv(1 << 16):
                received += chunk
        answer: dict[str, Any] = json.loads(received)
    except OSError as error:
        cause = why_no_answer(error, "limpet-dns")
        words = f'ask the DNS process at {path}: {cause}; it takes dns = "on" in the settings'
        raise LimpetError(words) from error
    except ValueError as error:
        raise LimpetError(f"ask the DNS process at {path}: it went away amid its answer") from error
    if "error" in answer:
        raise LimpetError(str(answer["error"]))
    return typed(answer, kind, of="the process that answers names")
