"""An agent goes on with what works when strongSwan does not, and tells what is wrong with it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from limpet.agent.answers.peers import peer_statuses
from limpet.agent.status.paths import PeerStatus
from limpet.base.ownership import IPSEC_FOLDER, IPSEC_IFNAME
from limpet.base.process import programs as companion
from limpet.cluster.kinds.network import TunnelBackend
from limpet.cluster.topology import transports
from limpet.datapath.tunnel.ipsec import daemon as ipsec
from limpet.datapath.tunnel.ipsec import keeper as ipsec_keeper
from limpet.datapath.tunnel.ipsec.process import IpsecProcess
from limpet.datapath.tunnel.traffic.report import tunnel_documents, unable_peers
from tests.beds.overlay_bed import Node
from tests.beds.traffic.tunnel_traffic import is_silent
from tests.datapath.tunnel.ipsec.ipsec_bed import charon, identity
from tests.datapath.tunnel.site_tunnel_bed import Agent, SiteTunnelBed
from tests.unit.cluster_values import CLUSTER_KEY, network, seal_network
from tests.waiting import wait_until

IPSEC = network(tunnel_backend=TunnelBackend.IPSEC)


class IpsecAgent(Agent):
    """Its strongSwan is a script, which may be another one the next time that it is started."""

    def __init__(self, node: Node, *, runs: bool) -> None:
        # A socket's path is a short one.
        here = Path(tempfile.mkdtemp(prefix="lgs"))
        self.script = here / "charon"
        self.started = here / "started"
        self.started.touch()
        if runs:
            self.mend()
        super().__init__(node, here, ipsec_program=str(self.script))

    async def _offer(self, sealed: Any) -> None:
        own = self.membership.identity
        ours = identity(self.node.number, own.uid, own.public_key)
        for path, content in (
            (own.key_path, ours.private_key),
            (own.certificate_path, ours.certificate),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        await super()._offer(seal_network(IPSEC, CLUSTER_KEY))

    def run_instead(self, command: str) -> None:
        """From its next start on."""
        fresh = self.script.with_suffix(".new")
        fresh.write_text(f"#!/bin/sh\necho >> {self.started}\n{command}\n")
        fresh.chmod(0o755)
        fresh.rename(self.script)

    def mend(self) -> None:
        self.run_instead(f"exec {charon()}")

    @property
    def starts(self) -> int:
        return len(self.started.read_text().splitlines())

    @property
    def sequence(self) -> int:
        """Of what it said of itself last."""
        presence = self.do(lambda: self.membership.presence)
        return presence.sequence if presence is not None else 0

    @property
    def tells_no_tunnel(self) -> bool:
        presence = self.do(lambda: self.membership.presence)
        return presence is not None and presence.tunnel_port == 0

    def document(self) -> dict[str, Any]:
        """What a person is told of its IPsec."""
        peer_parts = self.peer_parts
        found = self.do(
            lambda: tunnel_documents(peer_parts.tunnels, peer_parts.watch, now_ns=time.time_ns())
        )
        assert found["ipsec"] is not None
        return found["ipsec"]

    def unable(self) -> dict[str, str]:
        return self.do(lambda: unable_peers(self.peer_parts.tunnels, time.monotonic()))

    def peer(self, other: Agent) -> PeerStatus:
        """As `limpet peer list` shows it."""
        peer_parts = self.peer_parts
        listed = peer_statuses(
            peer_parts.peers.view,
            peer_parts.overlay.planned,
            heard_s={},
            every=False,
            readings={},
            now_ns=0,
        )
        return next(each for each in listed if each.uid == other.node.uid)

    def stop(self) -> None:
        super().stop()
        with self.node.netns.entered():
            IpsecProcess(self.folder / IPSEC_FOLDER).stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class IpsecSites(SiteTunnelBed):
    """The first node's strongSwan is not there yet, unless `runs`."""

    def __init__(self, folder: Path, *, runs: bool) -> None:
        self.runs = runs
        super().__init__(folder)

    def start(self, node: Node, **fields: Any) -> Agent:
        agent = IpsecAgent(node, runs=self.runs or node.number != 1)
        self.undo.callback(self.end, agent)
        return agent

    @property
    def both(self) -> tuple[IpsecAgent, IpsecAgent]:
        one, other = self.agents[:2]
        assert isinstance(one, IpsecAgent)
        assert isinstance(other, IpsecAgent)
        return one, other

    def join_pair(self) -> None:
        one, other = self.both
        one.reach({other.node.uid: self.by(other, transports.TUNNEL)})
        other.reach({one.node.uid: self.by(one, transports.TUNNEL)})


@pytest.fixture
def beds() -> Iterator[list[SiteTunnelBed]]:
    made: list[SiteTunnelBed] = []
    yield made
    for bed in made:
        bed.close()


def reaches(one: Agent, other: Agent) -> None:
    """A packet that comes before its tunnel is lost: it is asked again and again."""
    wait_until(lambda: not is_silent(one.node.pod, other.node.address(4)))


def test_a_strongswan_that_does_not_come_up_is_told_of_tried_seldom_and_taken_when_it_does(
    beds: list[SiteTunnelBed], tmp_path: Path
) -> None:
    bed = IpsecSites(tmp_path, runs=False)
    beds.append(bed)
    one, other = bed.both
    assert "install strongSwan 5.9 or newer" in one.document()["problem"]
    one.reach({other.node.uid: bed.by(other, transports.VXLAN)})
    other.reach({one.node.uid: bed.by(one, transports.VXLAN)})
    wait_until(lambda: one.is_routed_to(other, "limvx4") and other.is_routed_to(one, "limvx4"))
    reaches(one, other)

    one.run_instead("echo the reason >&2; exit 3")
    bed.join_pair()
    one.do(lambda: one.part_loop.resync("the timer's"))
    wait_until(lambda: "it ended at once: the reason" in one.document()["problem"])
    wait_until(lambda: one.tells_no_tunnel)
    said, starts = one.sequence, one.starts
    wait_until(lambda: one.starts > starts)
    # It does not tell others in between that it has a tunnel, and then that it has none.
    wait_until(lambda: one.document()["problem"] != "")
    assert one.sequence == said
    assert one.peer(other).why == "this node has no encrypted tunnel by IPsec"

    one.mend()
    wait_until(lambda: one.document()["problem"] == "" and one.document()["backend"] != "")
    other.hear(one)
    bed.join_pair()
    wait_until(lambda: one.is_routed_to(other, IPSEC_IFNAME))
    wait_until(lambda: other.is_routed_to(one, IPSEC_IFNAME))
    reaches(one, other)


def fill(process: IpsecProcess) -> None:
    """It takes no further connection then."""
    with ExitStack() as waiting:
        while True:
            try:
                waiting.callback(process.connect(0.01).close)
            except BlockingIOError:
                return


def test_a_strongswan_that_hangs_holds_nobody_up_and_is_started_anew(
    beds: list[SiteTunnelBed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipsec, "_HANGS_S", 60.0)
    monkeypatch.setattr(ipsec_keeper, "_CHECK_S", 0.2)
    monkeypatch.setattr(companion, "_STOP_TIMEOUT_S", 0.2)
    bed = IpsecSites(tmp_path, runs=True)
    beds.append(bed)
    one, other = bed.both
    bed.join_pair()
    wait_until(lambda: one.is_routed_to(other, IPSEC_IFNAME))
    reaches(one, other)
    with one.node.netns.entered():
        process = IpsecProcess(one.folder / IPSEC_FOLDER)
        pid = process.pid
        assert pid is not None

    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "no answer for seconds" in one.document()["problem"])
    wait_until(lambda: "no answer for seconds" in one.unable().get(other.node.uid, ""))
    began_s = time.monotonic()
    for _ in range(6):
        one.document()
        one.do(lambda: one.part_loop.resync("the timer's"))
    # Each of these would have asked it, and waited for two seconds.
    assert time.monotonic() - began_s < 10
    assert one.starts == 1

    fill(process)
    monkeypatch.setattr(ipsec, "_HANGS_S", 0.2)
    wait_until(lambda: one.starts == 2)
    wait_until(lambda: one.document()["problem"] == "")
    assert not Path(f"/proc/{pid}").exists()
    reaches(one, other)
