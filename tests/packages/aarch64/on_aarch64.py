"""Runs in the emulated machine, with the package's Python: a node on its own, from its first pod to
its last, and what the kernel there says of our programs. Prints what it saw as one line of JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limpet.datapath.services.sockets.apply import object_path
from limpet.linux.bpf.library import Bpf

PATIENCE_S = 600
"""Emulated: a command takes ten times as long."""
BINARY = "/opt/cni/bin/limpet"
CONFLIST = Path("/etc/cni/net.d/10-limpet.conflist")
SEGMENTS = ("10.244.7.0/24", "fd00:7::/64")


def run(*argv: str, stdin: str = "", further: Mapping[str, str] = {}) -> str:
    """Its output. `further`: variables beside ours. Raises: RuntimeError with what it said."""
    done = subprocess.run(
        argv,
        input=stdin,
        env={**os.environ, **further},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        raise RuntimeError(f"{argv}: {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def cni(command: str, pod: str, **further: Any) -> dict[str, Any]:
    conflist = json.loads(CONFLIST.read_text())
    conf = {**conflist["plugins"][0], "name": conflist["name"], "cniVersion": "1.0.0", **further}
    of_pod = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": pod,
        "CNI_NETNS": f"/run/netns/{pod}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(Path(BINARY).parent),
        "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}",
    }
    said = run(BINARY, stdin=json.dumps(conf), further=of_pod)
    document: dict[str, Any] = json.loads(said) if said else {}
    return document


def start_agent() -> subprocess.Popen[bytes]:
    agent = subprocess.Popen(["limpet", "agent"])
    run("limpet", "status", "--wait", "--timeout", str(PATIENCE_S / 2))
    return agent


def ping(pod: str, address: str) -> None:
    run("ip", "netns", "exec", pod, "ping", "-c", "2", "-W", "60", address)


def load_programs() -> list[str]:
    """Names of those that this kernel's verifier has taken, each at its hook."""
    run("mount", "-t", "bpf", "bpf", "/sys/fs/bpf")
    pins = Path(tempfile.mkdtemp(dir="/sys/fs/bpf"))
    bpf = Bpf()
    loaded = bpf.load(object_path(), lambda name: pins / name)
    cgroup = os.open("/sys/fs/cgroup", os.O_DIRECTORY)
    links = [bpf.attach(each, cgroup) for each in loaded.programs.values()]
    for fd in (*links, cgroup):
        os.close(fd)
    return sorted(loaded.programs)


def look() -> dict[str, Any]:
    found: dict[str, Any] = {"machine": platform.machine(), "kernel": platform.release()}
    found["programs"] = load_programs()
    Path("/etc/limpet").mkdir(parents=True, exist_ok=True)
    Path("/etc/limpet/agent.toml").write_text(f"segments = {json.dumps(SEGMENTS)}\n")
    run("limpet", "install", "--cni-only")
    agent = start_agent()
    found["lacks"] = json.loads(run("limpet", "netcheck", "--no-port-mapping", "-o", "json"))[
        "lacks"
    ]
    added = {}
    for pod in ("one", "other"):
        run("ip", "netns", "add", pod)
        added[pod] = cni("ADD", pod)
    found["added"] = {
        pod: [each["address"].split("/")[0] for each in result["ips"]]
        for pod, result in added.items()
    }
    for address in found["added"]["other"]:
        ping("one", address)
    agent.kill()
    agent.wait()
    for address in found["added"]["other"]:
        ping("one", address)
    agent = start_agent()
    for pod, result in added.items():
        cni("CHECK", pod, prevResult=result)
    found["attachments"] = json.loads(run("limpet", "status", "-o", "json"))["attachments"]
    for pod in added:
        cni("DEL", pod)
    agent.terminate()
    found["ended"] = agent.wait(PATIENCE_S)
    return found


def main() -> None:
    try:
        found = look()
    except Exception:  # noqa: BLE001 - there is nobody else there to tell
        found = {"failed": traceback.format_exc()}
    sys.stdout.write(f"FOUND {json.dumps(found)}\n")


if __name__ == "__main__":
    main()
