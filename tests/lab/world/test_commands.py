"""`limpet lab`, one process per command, as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from limpet.cli.main import main
from limpet.cli.usage.schemas import ANSWERS
from limpet.lab.command import run_command
from limpet.lab.launch import launcher
from limpet.lab.world.wires import existing_namespaces
from limpet.lab.world.worlds import FOLDER, take_down
from tests.answers import check_answer

NAME = f"llb{os.getpid()}"
DOOMED = f"{NAME}-doomed"


def limpet(*words: str) -> subprocess.CompletedProcess[str]:
    return launcher().run([sys.executable, "-m", "limpet", *words])


def lab(*words: str, name: str = NAME) -> subprocess.CompletedProcess[str]:
    return limpet("lab", words[0], "--name", name, *words[1:])


def status(name: str = NAME) -> dict[str, Any]:
    shown = lab("status", "--output", "json", name=name)
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def succeeds(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def runs(pid: int) -> bool:
    """Nobody may have taken note of its end yet: then it is there, and dead."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def running(name: str, topology: Path) -> Iterator[str]:
    try:
        succeeds(lab("up", str(topology), "--output", "json", name=name))
        yield name
    finally:
        take_down(name)


@pytest.fixture(scope="module")
def world(topology_file: Path) -> Iterator[str]:
    yield from running(NAME, topology_file)


@pytest.fixture
def doomed(topology_file: Path) -> Iterator[str]:
    yield from running(DOOMED, topology_file)


def test_a_world_lives_on_between_commands_through_all_that_befalls_it(world: str) -> None:
    before = status()
    assert before["nodes"][0]["agent"] == "ready"
    assert before["pods"][0]["pod"] == "gate-pod-0"

    succeeds(lab("status", "--ping"))
    succeeds(lab("fault", "cut"))
    assert status()["cut_off"] == ["cloud"]
    succeeds(lab("fault", "reboot", "gate"))
    succeeds(lab("fault", "address", "yard"))
    succeeds(lab("fault", "disk", "gate"))
    assert status()["nodes"][0]["disk_full"]
    succeeds(lab("fault", "disk", "gate", "--restore"))
    succeeds(lab("fault", "kill", "gate"))
    succeeds(lab("fault", "kill", "controller"))
    broken = status()
    assert broken["nodes"][0]["agent"] == "does not run"
    assert broken["controller"]["pid"] is None
    succeeds(lab("fault", "kill", "gate", "--restore"))
    succeeds(lab("fault", "kill", "controller", "--restore"))
    succeeds(lab("fault", "cut", "--restore"))

    after = status()
    assert after["nodes"][0]["agent"] == "ready"
    assert after["nodes"][0]["addresses"] != before["nodes"][0]["addresses"]
    assert after["nodes"][0]["segments"] == before["nodes"][0]["segments"]
    assert after["pods"] == before["pods"]
    assert after["controller"]["pid"] not in (None, before["controller"]["pid"])
    assert after["cut_off"] == []


def test_a_shell_is_in_the_place_and_limpet_there_means_that_node(world: str) -> None:
    assert "gate" in succeeds(lab("shell", "cloud", "--", "limpet", "node", "list"))
    assert "1 pod attached" in succeeds(lab("shell", "gate", "--", "limpet", "status"))
    address = status()["pods"][0]["addresses"][0]
    assert f"{address}/" in succeeds(lab("shell", "gate-pod-0", "--", "ip", "-br", "addr"))
    assert lab("shell", "gate", "--", "sh", "-c", "exit 7").returncode == 7


ASKED = {
    "cloud": [
        *("node list", "node show gate", "node label gate a=b", "node set gate --role edge"),
        *("segment list", "network show", "network set --encryption all", "pod list"),
        *("token create", "token list", "token remove --all", "token list --all"),
        *("controller recovery", "policy list --cluster", "events --cluster"),
        *("policy apply FOLDER/policy.yaml --cluster", "policy delete shop/closed --cluster"),
        *("community create harbour gate", "community add harbour --selector b=c"),
        *("community list", "community show harbour", "community remove harbour gate"),
        *("community remove harbour --all", "network set --encryption between-sites"),
        *("ui token create ann", "ui token list", "ui token remove ann", "help", "help doctor"),
        *("controller rotate-key", "controller backup FOLDER/backup.db"),
    ],
    "gate": [
        *("status", "peer list", "ipam list", "ipam check", "ipam repair", "policy list"),
        *("path default/gate-pod-0 default/gate-pod-0 --port 80", "path ADDRESS ADDRESS --probe"),
        *("policy show default/gate-pod-0", "pod label default/gate-pod-0 a=b", "events"),
        *("policy apply FOLDER/policy.yaml", "policy delete shop/closed", "doctor"),
        *("trace default/gate-pod-0 ADDRESS", "bugreport --file FOLDER/report.tar.gz"),
        *("netcheck --controller 203.0.113.10 --no-port-mapping", "join --controller 203.0.113.10"),
    ],
}
"""By place; what is said behind them was made before."""
ASKED_ELSEWHERE = {
    "bundle": "tests/cli/bundle/test_site_bundle.py",
    "connectivity test": "tests/kube/installed/test_connectivity.py",
    "controller install": "tests/cli/install/test_install_controller.py",
    "controller uninstall": "tests/cli/install/test_install_controller.py",
    "dns query": "tests/cli/install/test_install_dns.py",
    "dns status": "tests/cli/install/test_install_dns.py",
    "install": "tests/cli/install/test_install_controller.py",
    "ipam release": "tests/cli/test_commands.py",
    "ping": "tests/lab/diagnosis/test_netcheck_and_ping.py",
    "service list": "tests/faults/test_killed_services.py",
    "service show": "tests/faults/test_killed_services.py",
    "uninstall": "tests/cli/install/test_install_controller.py",
}
"""Where there is what they are about, which is not in this world."""
POLICY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: closed, namespace: shop }
spec: { podSelector: {}, policyTypes: [Ingress] }
"""


def test_what_commands_answer_is_what_their_schemas_say(world: str, tmp_path: Path) -> None:
    """Each that has a schema is asked here, or is named with the test that asks it."""
    there = status()
    configs = {"cloud": there["controller"]["config"], "gate": there["nodes"][0]["config"]}
    judged = set()

    def ask(place: str, words: str, config: str = "") -> dict[str, Any]:
        inside = ("nsenter", f"--net=/run/netns/limpet-lab.{NAME}.{place}")
        command = [*words.split(), "--config", config or configs[place], "-o", "json"]
        if words.startswith("help"):
            command[-4:-2] = []
        done = launcher().run([*inside, sys.executable, "-m", "limpet", *command])
        assert done.stdout, f"{words}: {done.stderr}"
        answer: dict[str, Any] = json.loads(done.stdout)
        judged.add(check_answer(command, answer))
        return answer

    (tmp_path / "policy.yaml").write_text(POLICY)
    address = there["pods"][0]["addresses"][0]
    for place, commands in ASKED.items():
        for asked in commands:
            ask(place, asked.replace("ADDRESS", address).replace("FOLDER", str(tmp_path)))

    # A node that comes and goes, and a controller that takes a backup's place.
    other, restored = tmp_path / "other.toml", tmp_path / "restored.toml"
    for file in (other, restored):
        file.write_text(f'state_dir = "{file.with_suffix("")}"\nsocket = "{file}.sock"\n')
    token = ask("cloud", "token create")["token"]
    ask("gate", f"join --token {token} --controller 203.0.113.10 --name other", str(other))
    for words in ("node replace other", "node replace other --cancel", "node remove other"):
        ask("cloud", words)
    ask("cloud", f"controller restore {tmp_path}/backup.db", str(restored))

    # The world itself. What `up` and `down` answer is judged where other tests of this file ask.
    judged.add(check_answer(["lab", "status"], there))
    for words in ("cut", "cut --restore"):
        succeeds(lab("fault", *words.split(), "--output", "json"))
        judged |= {"lab fault", "lab up", "lab down"}
    assert judged.isdisjoint(ASKED_ELSEWHERE)
    assert judged | ASKED_ELSEWHERE.keys() == ANSWERS.keys()


@pytest.mark.parametrize(
    ("whom", "asked", "meant"),
    [
        ("controller", "node show gaet", "gate"),
        ("controller", "pod list --node Gate", "gate"),
        ("agent", "ipam list --network limpt", "limpet"),
        ("agent", "ipam release 10.0.0.9 --network limpt", "limpet"),
        ("agent", "path gaet gate", "gate"),
        ("agent", "policy show default/gate-pd-0", "default/gate-pod-0"),
    ],
)
def test_who_mistypes_a_name_hears_the_one_that_was_meant(
    world: str, whom: str, asked: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there = status()
    config = {"controller": there["controller"], "agent": there["nodes"][0]}[whom]["config"]
    assert main([*asked.split(), "--config", config]) == 1
    assert f"id you mean {meant}?" in capsys.readouterr().err


def test_a_clock_is_turned_back_and_set_right(world: str) -> None:
    def agents_year() -> str:
        log = (FOLDER / NAME / "nodes" / "gate" / "agent.log").read_text()
        return log.splitlines()[-1].partition("timestamp=")[2][:4]

    succeeds(lab("fault", "clock", "gate"))
    assert agents_year() == "1970"
    assert status()["nodes"][0]["agent"] == "ready"
    succeeds(lab("fault", "clock", "gate", "--restore"))
    assert agents_year() != "1970"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fault", "reboot", "nobody"), "find nobody: neither a node (gate) nor a site (yard)"),
        (("fault", "reboot"), "say whom it befalls"),
        (("fault", "reboot", "gate", "--restore"), "it is over as soon as it happened"),
        (("fault", "cut", "mars"), "cut mars: neither `cloud` nor a site"),
        (("shell", "mars"), "there are: backbone, cloud, gate, gate-pod-0"),
    ],
)
def test_a_mistake_is_told_with_what_there_is(
    world: str, words: tuple[str, ...], said: str
) -> None:
    assert said in refused(lab(*words))


def test_a_world_that_is_half_gone_is_shown_and_taken_away(
    doomed: str, topology_file: Path
) -> None:
    run_command("ip", "netns", "del", f"limpet-lab.{doomed}.gate")
    run_command("ip", "netns", "del", f"limpet-lab.{doomed}.backbone")

    assert status(doomed)["nodes"][0]["agent"] == "node is gone"
    assert lab("status", "--ping", name=DOOMED).returncode == 1
    assert "its namespace is gone" in refused(lab("shell", "gate", name=DOOMED))
    assert "there is one of that name" in refused(lab("up", str(topology_file), name=DOOMED))
    succeeds(lab("down", "--output", "json", name=DOOMED))

    assert existing_namespaces(DOOMED) == []
    assert not (FOLDER / DOOMED).exists()


def test_a_world_whose_record_is_damaged_is_taken_away_with_its_processes(doomed: str) -> None:
    pids = [status(doomed)["controller"]["pid"], status(doomed)["nodes"][0]["pid"]]
    (FOLDER / DOOMED / "world.json").write_text("{")

    assert f"limpet lab down --name {DOOMED}" in refused(lab("status", name=DOOMED))
    succeeds(lab("down", name=DOOMED))

    assert not any(map(runs, pids))
    assert existing_namespaces(DOOMED) == []


def test_what_does_not_come_up_is_taken_away_again(topology_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text(topology_file.read_text() + '[agent]\nlog_level = "shout"\n')

    said = refused(lab("up", str(broken), name=DOOMED))

    assert "log_level" in said
    assert existing_namespaces(DOOMED) == []
    assert not (FOLDER / DOOMED).exists()


def test_a_world_is_told_apart_from_none(tmp_path: Path) -> None:
    assert "is not here" in refused(lab("status", name=DOOMED))
    assert f"there is no world {DOOMED}" in lab("down", name=DOOMED).stderr
    assert "no name of a world" in refused(limpet("lab", "status", "--name", "../etc"))
    assert "there is no such file" in refused(lab("up", str(tmp_path / "absent.toml"), name=DOOMED))


def test_up_that_is_interrupted_leaves_nothing(topology_file: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "limpet", "lab", "up", str(topology_file), "--name", DOOMED],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "controller starts" in line:
            process.send_signal(signal.SIGINT)
            break
    process.communicate()

    assert process.returncode != 0
    assert existing_namespaces(DOOMED) == []
    assert not (FOLDER / DOOMED).exists()
