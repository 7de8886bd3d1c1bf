"""The real CoreDNS beside ours: with a real API server that has the same Services, and the
configuration that clusters are made with."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.waiting import wait_until

from bench.nodes.netns import Netns
from limpet.lab.command import run_command
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.kube.programs import API_SERVER_PROGRAMS, built_programs

_PROGRAMS = (*API_SERVER_PROGRAMS, "coredns")
_ADDRESSES = ("198.51.100.1", "2001:db8:51::1")
_COREFILE = """\
.:53 {{
    bind {address}
    errors
    health 127.0.0.1:8080
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    prometheus 127.0.0.1:9153
    forward . {upstream} {{
        max_concurrent 1000
    }}
    cache 30
    loadbalance
}}
"""
"""As kubeadm writes it, but for addresses, and for what looks whether it loops or was changed."""
_AT_ONCE = 250


def start_coredns(
    netns: Netns,
    folder: Path,
    undo: ExitStack,
    *,
    address: str,
    upstream: str,
    names: Sequence[str],
) -> int | None:
    """Its process, when it answers for Services of these names; None: it was never built."""
    programs = built_programs(*_PROGRAMS)
    if programs is None:
        return None
    for each in _ADDRESSES:
        run_command("ip", "address", "add", each, "dev", "lo", netns=netns.name)
    # An API server looks for addresses by the default route.
    run_command("ip", "route", "add", "default", "dev", "lo", netns=netns.name)
    plane = ControlPlane(netns.name, folder / "plane", _ADDRESSES)
    undo.callback(plane.stop)
    plane.start(only_api=True)
    for at in range(0, len(names), _AT_ONCE):
        services = [_service(name) for name in names[at : at + _AT_ONCE]]
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": services})
        plane.kubectl("create", "--validate=false", "-f", "-", stdin=listed)
    kubeconfig = plane.write_kubeconfig(
        "coredns", "coredns", groups=["system:masters"], inside=True
    )
    corefile = folder / "Corefile"
    corefile.write_text(_COREFILE.format(address=address, upstream=upstream, kubeconfig=kubeconfig))
    with netns.inside():
        process = subprocess.Popen(
            [str(programs / "coredns"), "-conf", str(corefile)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    undo.callback(process.wait)
    undo.callback(process.kill)
    wait_until(lambda: _is_ready(netns, process), "CoreDNS has heard of all Services")
    return process.pid


def _service(name: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": [{"name": "http", "port": 80}]},
    }


def _is_ready(netns: Netns, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"CoreDNS has ended with {process.returncode}")
    with netns.inside():
        try:
            with urllib.request.urlopen("http://127.0.0.1:8181/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
