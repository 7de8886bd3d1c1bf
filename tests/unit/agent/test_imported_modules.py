"""What an agent keeps in memory: the modules that it has imported once it is ready."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from limpet.agent.policies.slot import POLICY_KIND
from limpet.cluster.kinds.policy import POLICY

SCRIPT = """
import json, os, socket, sys, threading
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind(os.environ["NOTIFY_SOCKET"])

def tell_modules():
    while b"READY=1" not in notify.recv(4096):
        pass
    sys.stdout.write(json.dumps([name for name, each in list(sys.modules.items()) if each]))
    sys.stdout.flush()
    os._exit(0)

threading.Thread(target=tell_modules, daemon=True).start()
from limpet.__main__ import main
sys.argv[:1] = ["limpet", "agent", "--config"]
main()
"""


def modules_of_a_started_agent(folder: Path) -> list[str]:
    """In a network namespace of its own, as a node that has joined no cluster."""
    paths = {"data_dir": "d", "state_dir": "s", "run_dir": "r", "socket": "r/agent.sock"}
    lines = [f'{key} = "{folder / name}"' for key, name in paths.items()]
    config = folder / "agent.toml"
    config.write_text("\n".join(['segments = ["10.244.7.0/24"]', *lines]))
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", SCRIPT, str(config)],
        capture_output=True,
        text=True,
        check=False,
        env={"NOTIFY_SOCKET": str(folder / "notify"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def of_others(modules: list[str]) -> set[str]:
    """Packages that are not of Python itself."""
    found = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
    # The machine's own; and of Playwright: structlog takes it where it happens to be.
    found -= {"sitecustomize", "greenlet"}
    return {each for each in found if not each.startswith("_")}


def test_a_node_of_its_own_has_in_memory_what_pods_need_and_nothing_for_a_cluster(
    tmp_path: Path,
) -> None:
    found = modules_of_a_started_agent(tmp_path)

    assert of_others(found) == {"limpet", "msgspec", "structlog"}
    rooms = {".".join(each.split(".")[:3]) for each in found if each.startswith("limpet.")}
    assert {each for each in rooms if each.split(".")[1] not in ("agent", "base")} == {
        *("limpet.__main__", "limpet._version"),
        # Values only: what a request says of segments, and what parts tell each other.
        *("limpet.cluster", "limpet.cluster.documents", "limpet.cluster.keys"),
        *("limpet.cluster.kinds", "limpet.cluster.segments"),
        *("limpet.cluster.topology", "limpet.datapath.event"),
        *(each for each in rooms if each.split(".")[1] in ("cni", "ipam", "linux")),
        *("limpet.datapath", "limpet.datapath.node", "limpet.datapath.change"),
        *("limpet.datapath.loop", "limpet.datapath.notified", "limpet.datapath.part"),
        # What has happened is kept on each node.
        *(each for each in rooms if each.split(".")[1] == "timeline"),
        *("limpet.picture", "limpet.picture.said", "limpet.picture.timeline"),
        # Structs alone, as `agent.status` is put together of them.
        *("limpet.nat", "limpet.nat.status", "limpet.relay", "limpet.relay.status"),
    }
    assert {each for each in rooms if each.startswith("limpet.agent.")} == {
        f"limpet.agent.{each}"
        for each in (
            *("answers", "dispatch", "happenings", "main", "original_sysctls", "policies"),
            *("settings", "status"),
        )
    }
    of_policies = {each for each in found if each.startswith("limpet.agent.policies.")}
    assert of_policies == {"limpet.agent.policies.slot"}


def test_an_agent_in_a_cluster_that_hears_its_controller_has_nothing_of_kubernetes_in_memory() -> (
    None
):
    script = (
        "import json, sys; sys.modules |= dict.fromkeys(('rich', 'typing_extensions')); "
        "import limpet.agent.main, limpet.agent.wiring; "
        "print(json.dumps([name for name, each in sys.modules.items() if each]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    found = json.loads(done.stdout)
    assert [name for name in found if name.startswith("limpet.kubernetes")] == []
    # To sign and to ask controllers.
    assert of_others(found) == {"cryptography", "h11", "limpet", "msgspec", "structlog"}


def test_a_kind_that_is_known_by_its_name_alone_has_that_name() -> None:
    """To keep the kinds out of memory until there is one of it."""
    assert POLICY.name == POLICY_KIND
