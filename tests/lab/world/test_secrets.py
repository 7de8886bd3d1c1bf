"""Where keys and tokens are not: in logs, in `ps`, in what is printed, in a core dump."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from limpet.cluster.api import parse_token
from limpet.controller.registry.records import AuthorityRecord
from limpet.datapath.tunnel.key import tunnel_private_key
from limpet.lab.command import run_command
from limpet.lab.world.controller import LabController
from limpet.lab.world.machine import Machine
from limpet.lab.world.tunnels import ipsec_pid, tunnel_pid
from limpet.lab.world.world import World
from tests.lab.bed import a_world, everybody_reaches_everybody, limpet
from tests.lab.rungs import peer
from tests.waiting import wait_until

TOPOLOGY = """
ipsec = true
[cloud]
addresses = ["203.0.113.10/24"]
nodes = { hub = 1 }
relays = ["hub"]
[site.lan]
lan = ["192.168.10.0/24"]
nat = "cone"
nodes = { node-1 = 1 }
[site.quarry]
lan = ["192.168.20.0/24"]
nat = "cone"
nodes = { node-2 = 1 }
[agent]
log_level = "debug"
metrics_listen = ["127.0.0.1:9111"]
[controller]
log_level = "debug"
metrics_listen = ["127.0.0.1:9112"]
"""
_FETCH = """
import sys, urllib.request
for url in sys.argv[1:]:
    print(urllib.request.urlopen(url, timeout=20).read().decode())
"""
_TOKENS: list[str] = []
_BY_IPSEC = ("node-1", "node-2")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Everything says all that it ever says, and the tokens that let nodes in are noted. The two
    sites' nodes send to each other by IPsec, and to the hub by WireGuard."""
    make = LabController.token

    def noting(self: LabController, **arguments: object) -> str:
        _TOKENS.append(make(self, **arguments))
        return _TOKENS[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LabController, "token", noting)
        with a_world(TOPOLOGY, tmp_path_factory.mktemp("secrets")) as world:
            world.controller.command(
                *("community", "create", "works", "node-1", "node-2", "--tunnel-backend", "ipsec")
            )
            for here, there in (_BY_IPSEC, _BY_IPSEC[::-1]):
                until_by(world.machine(here), there, "ipsec0")
            everybody_reaches_everybody(world)
            yield world


def until_by(machine: Machine, other: str, device: str) -> None:
    wait_until(lambda: peer(machine, other).get("devices") == [device])


def secrets(world: World) -> dict[str, bytes]:
    """Every one of them, by whose it is. Tunnels know no other key than what is made of the node's:
    WireGuard has no pre-shared ones, and strongSwan is given the node's own."""
    found = {
        f"key of {name}": (machine.folder.rglob("node.key").__next__()).read_bytes()
        for name, machine in world.machines.items()
    }
    found |= {f"tunnel's {name}": tunnel_private_key(key) for name, key in found.items()}
    with contextlib.closing(sqlite3.connect(world.controller.folder / "state/controller.db")) as db:
        (value,) = db.execute("SELECT value FROM item WHERE kind = 'authority'").fetchone()
    authority = msgspec.json.decode(value, type=AuthorityRecord)
    found["key of the CA"] = authority.ca_key
    for number, key in enumerate(authority.cluster_keys):
        found[f"cluster key {number}"] = key
    assert all(len(key) == 32 for key in found.values())
    for number, token in enumerate(_TOKENS):
        found[f"token {number}"] = parse_token(token).secret
    return found


def spellings(secret: bytes) -> set[bytes]:
    """A secret as it is, and as programs write such: also in the midst of another text."""
    found = {
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        repr(secret)[2:-1].encode(),
    }
    for shift in range(3):
        found.add(base64.b64encode(bytes(shift) + secret)[4 * (shift > 0) : -4])
    found.add(base64.b32encode(secret).rstrip(b"=")[:-1])
    found.add(base64.b32encode(secret).rstrip(b"=")[:-1].lower())
    found |= {each.replace(b"+", b"-").replace(b"/", b"_") for each in found}
    return found


def assert_none_in(said: bytes, where: str, world: World) -> None:
    for what, secret in secrets(world).items():
        for spelling in spellings(secret):
            assert spelling not in said, f"{what} is in {where}"


def pids(world: World) -> dict[str, int]:
    """Of our processes, and of the programs that they started."""
    found = {name: machine.agent_pid for name, machine in world.machines.items()}
    controller = world.controller.process.pid
    assert controller is not None
    found["controller"] = controller
    for name, machine in world.machines.items():
        inside = subprocess.run(
            ["ip", "netns", "pids", machine.name], capture_output=True, text=True, check=True
        )
        found |= {f"program {pid} of {name}": int(pid) for pid in inside.stdout.split()}
    return found


def test_the_programs_of_both_kinds_of_tunnel_are_looked_at_and_have_said_something(
    world: World,
) -> None:
    looked_at = set(pids(world).values())
    for name in _BY_IPSEC:
        machine = world.machine(name)
        assert {ipsec_pid(machine.name), tunnel_pid(machine.name)} <= looked_at
        (log,) = machine.run_dir.rglob("charon.log")
        assert re.search(rb"loaded \w+ private key", log.read_bytes())


def test_a_spelling_is_found_in_what_holds_it() -> None:
    secret = os.urandom(32)
    for text in (
        secret.hex().encode(),
        base64.b64encode(b"x" + secret + b"yz"),
        base64.b64encode(b"xy" + secret),
        base64.urlsafe_b64encode(secret),
        f"key={secret!r}".encode(),
    ):
        assert any(each in text for each in spellings(secret)), text


def test_no_log_holds_a_secret_at_any_level(world: World) -> None:
    logs = [world.controller.process.log]
    for machine in world.machines.values():
        logs += [machine.agent.log, *machine.run_dir.rglob("*.log")]
    for log in logs:
        assert_none_in(log.read_bytes(), str(log), world)
    assert b"level=debug" in b"".join(log.read_bytes() for log in logs)
    assert len(_TOKENS) == 3


def test_no_process_shows_a_secret_to_ps(world: World) -> None:
    for name, pid in pids(world).items():
        for file in ("cmdline", "environ"):
            try:
                said = Path(f"/proc/{pid}/{file}").read_bytes()
            except ProcessLookupError:
                continue  # a command of its own that has ended
            assert_none_in(said, f"{file} of {name}", world)


def test_nothing_that_a_command_prints_holds_a_secret(world: World) -> None:
    json = ("--output", "json")
    told = [
        world.controller.command(*words)
        for words in (
            ("node", "list", *json),
            ("token", "list", "--all", *json),
            ("node", "show", "hub", *json),
            ("network", "show", *json),
            ("pod", "list", *json),
        )
    ]
    machine = world.machines["node-1"]
    told += [limpet(machine, "status", *json), limpet(machine, "peer", "list", *json)]
    assert_none_in("".join(told).encode(), "what commands print", world)


def test_no_figure_holds_a_secret(world: World) -> None:
    machine = world.machines["node-1"]
    texts = [
        machine.run(sys.executable, "-c", _FETCH, "http://127.0.0.1:9111/metrics"),
        run_command(
            *(sys.executable, "-c", _FETCH, "http://127.0.0.1:9112/metrics"),
            netns=world.controller.netns,
        ),
    ]
    for whose, text in zip(("an agent's", "the controller's"), texts, strict=True):
        assert "\nlimpet_" in text
        assert_none_in(text.encode(), f"{whose} figures", world)


def test_what_others_may_read_holds_no_secret(world: World) -> None:
    tops = [world.controller.folder, world.controller.run_dir]
    tops += [top for each in world.machines.values() for top in (each.folder, each.run_dir)]
    for path in (path for top in tops for path in top.rglob("*")):
        info = path.lstat()
        if stat.S_ISREG(info.st_mode) and info.st_mode & 0o077:
            assert_none_in(path.read_bytes(), str(path), world)


def test_whoever_has_the_controller_has_no_key_of_a_node(world: World) -> None:
    """Its files and its back-up hold the cluster's keys, and nothing that opens tunnels."""
    backup = world.controller.folder / "backup.db"
    world.controller.command("controller", "backup", str(backup))
    try:
        texts = [
            path.read_bytes()
            for path in world.controller.folder.rglob("*")
            if stat.S_ISREG(path.lstat().st_mode)
        ]
        for what, secret in secrets(world).items():
            holders = [text for text in texts if any(each in text for each in spellings(secret))]
            of_the_cluster = what == "key of the CA" or what.startswith("cluster key")
            assert (len(holders) >= 2) if of_the_cluster else not holders, what
    finally:
        backup.unlink(missing_ok=True)


def test_a_process_with_keys_leaves_no_core_and_root_can_still_look_into_it(world: World) -> None:
    for name, pid in pids(world).items():
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0), name
        dumped = Path(f"/proc/{pid}/coredump_filter").read_text(encoding="ascii")
        assert dumped == "00000000\n", name
    agent = world.machines["node-1"].agent_pid
    maps = Path(f"/proc/{agent}/maps").read_text(encoding="utf-8")
    first = re.match(r"([0-9a-f]+)-", maps)
    assert first is not None
    with open(f"/proc/{agent}/mem", "rb") as memory:  # as a debugger does
        memory.seek(int(first[1], 16))
        assert memory.read(4)
