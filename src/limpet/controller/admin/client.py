"""Asking the controller, from a person's shell."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from limpet.base.errors import ControllerUnavailable, LimpetError, why_no_answer

_ANSWER_TIMEOUT_S = 120.0


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("controller", timeout=_ANSWER_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


BY_HEADER = "X-Limpet-By"
"""Who does it, for the log; a header, since it is no argument of any verb."""


def call(socket_path: Path, verb: str, *, by: str = "", **arguments: Any) -> dict[str, Any]:
    """The controller's answer to a verb. `by`: for whom it is asked, if not for the shell's user.

    Raises: ControllerUnavailable when nobody answers; LimpetError with its words on failure.
    """
    connection = _UnixConnection(socket_path)
    try:
        headers = {BY_HEADER: by} if by else {}
        connection.request("POST", f"/{verb}", json.dumps(arguments), headers)
        answer = connection.getresponse()
        document: dict[str, Any] = json.loads(answer.read())
    except OSError as error:
        cause = why_no_answer(error, "limpet-controller")
        raise ControllerUnavailable(f"ask the controller at {socket_path}: {cause}") from error
    except (http.client.HTTPException, ValueError) as error:
        words = f"ask the controller at {socket_path}: what it answers makes no sense ({error})"
        raise ControllerUnavailable(words) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise LimpetError(str(document.get("error", f"the controller answered {answer.status}")))
    return document
