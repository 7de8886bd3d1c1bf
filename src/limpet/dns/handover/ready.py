"""`limpet dns ready`: whether this process, or its pod, is the one that answers names.

For the probes of a kubelet, which start it again and again: it imports nothing that takes time.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence

from limpet.dns.handover.words import encode_request

POD = "LIMPET_POD"
"""Names the pod, in the environment of all of its processes; elsewhere nobody sets it."""
_DEFAULT_SOCKET = "/run/limpet/dns.sock"
_ANSWER_S = 4.0


def main(arguments: Sequence[str]) -> int:
    """0: it answers; 1: it does not; 2: bad usage."""
    left = list(arguments)
    is_any = "--any" in left
    if is_any:
        left.remove("--any")
    path = _DEFAULT_SOCKET
    if left[:1] == ["--socket"] and len(left) == 2:
        path = left[1]
    elif left:
        _say("usage: limpet dns ready [--any] [--socket PATH]")
        return 2
    try:
        pod = _pod_that_answers(path)
    except (OSError, ValueError, KeyError) as error:
        _say(f"dns ready: nobody answers at {path}: {error}")
        return 1
    if is_any or pod == os.environ.get(POD, ""):
        return 0
    _say(f"dns ready: pod {pod} answers still")
    return 1


def _pod_that_answers(path: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_ANSWER_S)
        client.connect(path)
        client.sendall(encode_request({"ask": "status"}))
        received = b""
        while chunk := client.recv(1 << 16):
            received += chunk
    answer = json.loads(received)
    if "error" in answer:
        raise ValueError(answer["error"])
    return str(answer["pod"])


def _say(words: str) -> None:
    print(f"limpet {words}", file=sys.stderr)  # noqa: T201 - before any log
