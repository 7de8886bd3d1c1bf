"""A port at a gateway by UPnP, asked for in a process of its own.

miniupnpc reads whatever a gateway sends to its end and waits for as long as something comes, and
whoever is on the link can be the gateway. So a process asks that may take so much memory and time.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from ipaddress import IPv4Address

from limpet.base.bounds.servers import GATEWAY_MEMORY, GATEWAY_TALK_S
from limpet.nat.port_control_codec import PortControlError, PortLease
from limpet.nat.upnp import UpnpGateway

_ENDED_S = 5.0
"""Within so long after its time a process is gone that ends itself."""


def map_apart(location: str, port: int, wanted: int, lifetime_s: int) -> PortLease:
    """As `UpnpGateway.map`, at the gateway described at `location`; for a thread.

    Raises: PortControlError, OSError.
    """
    words = map(str, (location, port, wanted, lifetime_s))
    late = PortControlError(f"UPnP: the gateway had not said all within {GATEWAY_TALK_S.most} s")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd="/",
            timeout=GATEWAY_TALK_S.most + _ENDED_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise late from error
    if done.returncode == -signal.SIGALRM:
        raise late
    if done.returncode:
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no word"])[-1]
        raise PortControlError(f"UPnP: who asked the gateway ended: {last}")
    told = json.loads(done.stdout)
    if "problem" in told:
        raise PortControlError(told["problem"])
    address = told["address"]
    return PortLease(IPv4Address(address) if address else None, told["port"], told["lifetime_s"])


def _ask(location: str, port: str, wanted: str, lifetime_s: str) -> dict[str, str | int]:
    try:
        lease = UpnpGateway(location).map(int(port), int(wanted), int(lifetime_s))
    except PortControlError as error:
        return {"problem": str(error)}
    except MemoryError:
        return {"problem": "UPnP: the gateway's answer has no end"}
    address = str(lease.address) if lease.address is not None else ""
    return {"address": address, "port": lease.port, "lifetime_s": lease.lifetime_s}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (GATEWAY_MEMORY.most, GATEWAY_MEMORY.most))
    signal.alarm(GATEWAY_TALK_S.most)
    sys.stdout.write(json.dumps(_ask(*sys.argv[1:])))
