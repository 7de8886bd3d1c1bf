"""A pod that serves, and who asks it, over TCP."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from limpet.lab.command import LabError, run_command
from limpet.lab.world.pod import LabPod

_SERVER = """
import socket, sys
server = socket.create_server(
    ("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True
)
print("up", flush=True)
while True:
    client, _ = server.accept()
    client.sendall(sys.argv[2].encode())
    client.close()
"""
_CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3) as server:
    print(server.recv(1000).decode(), end="")
"""


def fetch(address: str, port: int, *, netns: str) -> str:
    """What a server on TCP says first, asked from a namespace. Raises: LabError."""
    return run_command(sys.executable, "-c", _CLIENT, address, str(port), netns=netns)


@contextlib.contextmanager
def serving(pod: LabPod, port: int, text: str) -> Iterator[None]:
    """Within the block the pod says `text` to whoever connects to `port`, over TCP."""
    process = subprocess.Popen(
        ["nsenter", f"--net={pod.netns_path}", sys.executable, "-c", _SERVER, str(port), text],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline() != b"up\n":
            raise LabError(f"serve on port {port} of pod {pod.name}: it did not start")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
