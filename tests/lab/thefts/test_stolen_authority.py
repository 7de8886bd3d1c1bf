"""The certificate authority's key is stolen with the database: the steps of docs/security.md, and
what its thief gets into with it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from limpet.base.decoding import decode_json
from limpet.cluster.api import SERVER_NAME, token_id
from limpet.controller.registry.records import AUTHORITY, AuthorityRecord
from limpet.controller.state.authority import _certificate
from limpet.controller.store.database import read_item
from limpet.lab.command import run_command
from limpet.lab.files import write_settings
from limpet.lab.world.controller import LabController
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.lab.bed import a_world, is_refused, limpet, remember
from tests.lab.rungs import peer, the_pod
from tests.lab.thefts.test_stolen_key import cluster_of, reach_each_other
from tests.waiting import wait_until

_WORLD = """
[cloud]
addresses = ["203.0.113.10/24"]
nodes = { hub = 1 }
relays = ["hub"]
[site.lan]
lan = ["192.168.10.0/24"]
nodes = { node-1 = 1, node-2 = 1 }
"""
_ASK = """
import socket, ssl, sys
host, port = sys.argv[1].rsplit(":", 1)
context = ssl.create_default_context(cafile=sys.argv[2])
context.load_cert_chain(sys.argv[3])
context.check_hostname = False
try:
    with socket.create_connection((host, int(port)), timeout=20) as plain:
        with context.wrap_socket(plain, server_hostname=sys.argv[4]) as tls:
            tls.sendall(b"GET /v1/watch HTTP/1.1\\r\\nHost: x\\r\\nLimpet-Revision: 0\\r\\n\\r\\n")
            print(tls.recv(4096).decode(errors="replace"))
except (OSError, ssl.SSLError) as error:
    print(f"!{error}")
"""

_MUTE = """
import asyncio, sys
from pathlib import Path
from aiohttp import web
from limpet.base.decoding import decode_json
from limpet.cluster import api
from limpet.controller.registry.records import AUTHORITY, AuthorityRecord
from limpet.controller.state.authority import server_context
from limpet.controller.store.database import read_item
from limpet.paths.report import PathReport, PathReportAnswer

async def hello(request):
    asked = api.decode(await request.read(), api.HelloRequest)
    return web.Response(body=api.encode(api.HelloAnswer(asked.revision, asked.documents)))

async def publish(request):
    return web.Response(body=api.encode(api.PublishAnswer(1 << 40)))

async def pods(request):
    asked = api.decode(await request.read(), api.PodReport)
    return web.Response(body=api.encode(api.PodAnswer(asked.sequence)))

async def paths(request):
    asked = api.decode(await request.read(), PathReport)
    return web.Response(body=api.encode(PathReportAnswer(asked.sequence)))

async def watch(request):
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        line = api.WatchLine(api.WatchKind.BOOKMARK, "0")
        try:
            await response.write(api.encode(line) + b"\\n")
        except ConnectionError:
            return response
        await asyncio.sleep(1)

authority = decode_json(read_item(Path(sys.argv[1]), AUTHORITY, AUTHORITY), AuthorityRecord)
application = web.Application()
application.add_routes([
    web.post("/v1/hello", hello), web.put("/v1/documents", publish), web.post("/v1/pods", pods),
    web.post("/v1/paths", paths), web.get("/v1/watch", watch),
])
print("up", flush=True)
web.run_app(application, port=7999, ssl_context=server_context(authority), print=None)
"""
"""A controller that takes everything, and tells nothing but that it is there."""
_REDIRECT = """
table ip thief {
    chain out {
        type nat hook output priority -100; policy accept;
        tcp dport 7470 dnat to 203.0.113.10:7999
    }
}
"""

_DEAF = """
table inet deaf {
    chain c {
        type filter hook input priority -300; policy accept;
        udp dport 7471 drop
    }
}
"""
"""Nothing that neighbours say is heard."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with a_world(_WORLD, tmp_path) as made:
        yield made


@dataclass
class Thief:
    """Has the database as it was, and can redirect packets to the controller to one of its own."""

    controller: LabController
    authority: AuthorityRecord

    def certificate_of(self, uid: str) -> Path:
        """One that names the node, which the stolen CA has signed, with a key of the thief's."""
        key = Ed25519PrivateKey.generate()
        authority = self.authority
        signed = _certificate(uid, key.public_key(), authority.ca_key, authority.ca_certificate)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path = self.controller.folder / "forged.pem"
        path.write_bytes(signed.encode() + private)
        return path

    @contextlib.contextmanager
    def mute(self) -> Iterator[None]:
        """Within the block something with the CA's certificate takes all that nodes say, at another
        port, and tells them nothing."""
        database = self.controller.folder / "state" / "controller.db"
        inside = ("nsenter", f"--net=/run/netns/{self.controller.netns}")
        process = subprocess.Popen(
            [*inside, sys.executable, "-c", _MUTE, str(database)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"up\n"
            yield
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def ask(self, at: str, certificate: Path) -> str:
        """What is answered there; begins with `!` where TLS refuses."""
        ca = self.controller.folder / "ca.pem"
        ca.write_text(self.authority.ca_certificate)
        words = (at, str(ca), str(certificate), SERVER_NAME)
        return run_command(sys.executable, "-c", _ASK, *words, netns=self.controller.netns)


def steal_database(world: World) -> Thief:
    controller, folder = world.controller, world.folder / "thief"
    controller.stop()
    shutil.copytree(controller.settings["state_dir"], folder / "state")
    controller.start()
    own = ("state_dir", "socket", "listen")
    settings = {key: value for key, value in controller.settings.items() if key not in own}
    settings |= {"listen": ["[::]:7999"], "socket": str(controller.run_dir / "thief.sock")}
    theirs = LabController(controller.netns, folder, (), **settings)
    record = read_item(folder / "state" / "controller.db", AUTHORITY, AUTHORITY)
    assert record is not None
    return Thief(theirs, decode_json(record, AuthorityRecord))


def key_of(machine: Machine) -> str:
    """As a person reads it at the node."""
    shown = limpet(machine, "status")
    (line,) = (each for each in shown.splitlines() if "(key " in each)
    return line.partition("(key ")[2].partition(")")[0]


def key_of_cloud(world: World) -> str:
    return str(json.loads(world.controller.command("network", "show", "-o", "json"))["key"])


def start_pods_anew(machine: Machine) -> None:
    for name in [each.name for each in machine.pods.values()]:
        machine.stop_pod(name)
        machine.start_pod(name)


def join_as_mole(thief: Thief, token: str, endpoints: Sequence[str]) -> None:
    """A machine of the thief's joins the cluster, from the cloud's network."""
    folder = thief.controller.folder / "mole"
    folder.mkdir(exist_ok=True)
    config = folder / "agent.toml"
    parts = {f"{each}_dir": str(folder / each) for each in ("state", "data", "run")}
    write_settings(config, {**parts, "socket": str(folder / "agent.sock")})
    words = [word for each in endpoints for word in ("--controller", each)]
    run_command(
        *(sys.executable, "-m", "limpet", "join", "--token-file", "-", *words),
        *("--name", "mole", "--config", str(config)),
        netns=thief.controller.netns,
        stdin=token,
    )


def names(world: World) -> set[str]:
    """Of the nodes, as a person lists them."""
    listed = json.loads(world.controller.command("node", "list", "-o", "json"))["nodes"]
    return {each["name"] for each in listed}


def has_asked_controller(machine: Machine) -> bool:
    """Since its agent began: it is connected, or knows why not."""
    found = cluster_of(machine)["controller"]
    return bool(found["connected"] or found["error"])


def relay_of(machine: Machine) -> str:
    """Where it relays in TLS."""
    return f"{machine.addresses[0].ip}:443"


def strangers_at_relay(relay: Machine) -> int:
    found = cluster_of(relay)["nat_traversal"]["relaying_tls"]["refused"]
    return int(found.get("stranger", 0))


def test_who_has_the_cas_key_gets_in_nowhere_and_a_machine_that_was_caught_is_seen(
    world: World,
) -> None:
    hub, near, newcomer = (world.machine(each) for each in ("hub", "node-1", "node-2"))
    true, command = world.controller, world.controller.command
    command("node", "remove", "node-2")  # from here on a machine that has not joined yet
    newcomer.stop_agent()
    early = true.token()
    thief = steal_database(world)

    # The steps.
    command("controller", "rotate-key")
    command("controller", "backup", str(world.folder / "after"))
    wait_until(lambda: all(cluster_of(each)["rotations"] == 1 for each in (hub, near)))
    assert key_of(hub) == key_of(near) == key_of_cloud(world)
    assert token_id(early) in command("token", "remove", "--all")
    later = true.token()

    # By a certificate that the CA's key has signed nobody becomes a node that exists, or uses a
    # relay: both go by the key.
    forged = thief.certificate_of(cluster_of(near)["uid"])
    assert "HTTP/1.1 403" in thief.ask(true.endpoints[0], forged)
    before = strangers_at_relay(hub)
    assert "HTTP" not in thief.ask(relay_of(hub), forged)
    wait_until(lambda: strangers_at_relay(hub) > before)

    # A machine that joins there by a token of after the rotation is refused, by one of before it is
    # caught: its key is another, and no node takes it for one of theirs.
    thief.controller.start()
    newcomer.run("nft", _REDIRECT)
    assert "nobody made this token" in is_refused(
        lambda: newcomer.join(later, true.endpoints, "--new-identity")
    )
    newcomer.join(early, true.endpoints, "--new-identity")
    newcomer.start_agent()
    assert not reach_each_other(near, newcomer)
    assert not peer(near, "node-2")
    assert key_of(newcomer) != key_of_cloud(world) == key_of(near)
    newcomer.run("nft", "delete", "table", "ip", "thief")

    # A node that is there may connect to it, and takes nothing of it: it lacks the key that signs.
    near.stop_agent()
    near.run("nft", _REDIRECT)
    near.start_agent()
    wait_until(lambda: has_asked_controller(near))
    assert key_of(near) == key_of_cloud(world)
    wait_until(lambda: reach_each_other(hub, near))
    near.run("nft", "delete", "table", "ip", "thief")
    thief.controller.stop()

    # The thief was shown one token that was removed, and one that the cluster takes: by that a
    # machine of its own gets in, is seen where the token is removed, and is removed. The one that
    # was caught joins by another token.
    assert "an administrator removed the token" in is_refused(
        lambda: join_as_mole(thief, early, true.endpoints)
    )
    assert "mole" not in names(world)
    join_as_mole(thief, later, true.endpoints)
    assert "mole" in names(world)
    said = is_refused(lambda: command("token", "remove", token_id(later)))
    assert "had let in mole" in said
    command("node", "remove", "mole")
    assert "mole" not in names(world)
    newcomer.stop_agent()
    assert "was used by another node" in is_refused(
        lambda: newcomer.join(later, true.endpoints, "--new-identity")
    )
    newcomer.join(true.token(), true.endpoints, "--new-identity")
    newcomer.start_agent()
    assert key_of(newcomer) == key_of_cloud(world)
    start_pods_anew(newcomer)
    wait_until(lambda: reach_each_other(hub, near, newcomer))


def revision_of_cloud(world: World) -> int:
    return int(
        json.loads(world.controller.command("network", "show", "-o", "json"))["cluster_revision"]
    )


def test_a_node_whose_controller_is_the_thiefs_hears_from_neighbours_and_else_falls_behind(
    world: World,
) -> None:
    hub, near = world.machine("hub"), world.machine("node-1")
    thief = steal_database(world)
    world.controller.command("controller", "rotate-key")
    wait_until(lambda: cluster_of(near)["rotations"] == 1)
    near.stop_agent()
    with thief.mute():
        near.run("nft", _REDIRECT)
        near.start_agent()
        wait_until(lambda: cluster_of(near)["controller"]["connected"])

        world.controller.command("node", "label", "hub", "place=quay")
        wait_until(lambda: cluster_of(near)["revision"] == revision_of_cloud(world))
        assert f"revision {revision_of_cloud(world)}" in limpet(near, "status")

        near.run("nft", _DEAF)
        world.controller.command("node", "label", "hub", "place=pier")
        wait_until(lambda: cluster_of(hub)["revision"] == revision_of_cloud(world))
        assert cluster_of(near)["revision"] < revision_of_cloud(world)
        assert cluster_of(near)["controller"]["connected"]
        assert "connected to the controller" in limpet(near, "status")
        assert key_of(near) == key_of_cloud(world)
        near.run("nft", "delete", "table", "inet", "deaf")
        near.run("nft", "delete", "table", "ip", "thief")
    wait_until(lambda: cluster_of(near)["revision"] == revision_of_cloud(world))
    wait_until(lambda: reach_each_other(hub, near))


def test_a_cluster_that_was_made_anew_knows_nothing_of_the_stolen_authority(world: World) -> None:
    machines = [world.machine(each) for each in ("hub", "node-1", "node-2")]
    true = world.controller
    thief = steal_database(world)
    before = {each: remember(each) for each in machines}

    true.stop()
    Path(true.settings["state_dir"]).rename(world.folder / "old")
    true.start()
    # The last of before comes first, so that segments are not those of before by chance.
    by_segment = sorted(machines, key=lambda each: int(the_pod(each).addresses[0].ip))
    for machine in reversed(by_segment):
        machine.stop_agent()
        token = true.token(roles=list(machine.node.roles))
        machine.join(token, true.endpoints, "--new-identity")
        machine.start_agent()
    # Pods have addresses of before.
    assert not reach_each_other(by_segment[0], by_segment[-1])
    for machine in machines:
        assert key_of(machine) == key_of_cloud(world)
        start_pods_anew(machine)
    wait_until(lambda: reach_each_other(*machines))
    assert any(remember(each) != before[each] for each in machines)

    forged = thief.certificate_of(cluster_of(machines[1])["uid"])
    for at in (true.endpoints[0], relay_of(machines[0])):
        assert thief.ask(at, forged).startswith("!")
    thief.controller.start()
    for machine in machines:
        machine.run("nft", _REDIRECT)
    true.stop()  # so that all connect anew
    wait_until(
        lambda: all("certificate" in cluster_of(each)["controller"]["error"] for each in machines)
    )
    wait_until(lambda: reach_each_other(*machines))
