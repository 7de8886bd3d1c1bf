"""Where tunnels' packets go: another's key, and what a member says of how a NAT maps a node."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from limpet.base.addresses import Endpoint
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec, Datagram, DatagramError
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.keys import uid_of
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology import transports
from limpet.datapath.event import AnswerSeen
from limpet.nat.mapping import NatView
from limpet.paths.probe.codec import encode_answer, parse_probe
from limpet.paths.probe.messages import ProbeAnswer
from tests.beds.overlay_bed import is_lost, ping
from tests.beds.tunnel_bed import TunnelBed
from tests.claims.claims_bed import counting
from tests.paths.probing_bed import PORT, Node, PathBed
from tests.paths.test_probing_tunnel import TUNNEL_PORT, behind_nat, on, public, running
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    node_key,
    presence,
    seal_grant,
    seal_presence,
)
from tests.waiting import until, until_answered, wait_until

_LIARS = ip_address("198.51.100.14")
"""Where `public` puts its third node."""
_CUT = """
table ip cut {
    chain c {
        type filter hook forward priority 0; policy accept;
        ip saddr 203.0.113.0/24 ip daddr 203.0.113.0/24 drop
    }
}
"""
"""Of what gateways say to each other nothing arrives."""


def test_of_two_that_were_granted_one_key_none_gets_the_others_packets(tmp_path: Path) -> None:
    """As no controller grants it: a uid is made of the key. Only who holds the private key reads
    what is sent, and the other's segments lead to it in no case."""
    bed = TunnelBed(3, tmp_path)
    with bed.undo:
        watcher, victim, claimant = bed.tunnels
        pod = watcher.node.pod
        for each in (victim, claimant):
            ping(pod, each.node.address(4))
        true, own = victim.node.grant, claimant.node.grant
        words = f"ip daddr {victim.node.address(4)}"
        with counting(claimant.node.netns, words) as drawn:
            for newer, reaches_victim in ((-1, True), (0, False), (1, False)):
                taken = replace(own, public_key=true.public_key, revision=true.revision + newer)
                entry = NodeEntry(taken, claimant.node.presence)
                watcher.settle({**bed.entries(), claimant.node.uid: entry})
                assert is_lost(pod, victim.node.address(4)) is not reaches_victim
                assert is_lost(pod, claimant.node.address(4))
            assert drawn() == 0
        watcher.settle(bed.entries())
        ends = [each.node.address(4) for each in (victim, claimant)]
        # A handshake that is lost is tried again after 5 s.
        wait_until(lambda: not any(is_lost(pod, end) for end in ends))


class Liar:
    """A public member that answers every probe, also those for others, and says to each that it
    came from the liar's own endpoint."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.endpoint: Endpoint = (_LIARS, TUNNEL_PORT)
        self._codec = Codec(node_key(node.number), PINNED)

    @contextlib.contextmanager
    def answering(self, *others: Node) -> Iterator[None]:
        """Within a running loop. `others`: whose probes it reads, as anybody on the way may."""
        readers = [Codec(node_key(each.number), PINNED) for each in (self.node, *others)]
        with self.node.netns.open_socket(4, socket.SOCK_DGRAM) as opened:
            opened.setblocking(False)
            opened.bind((str(self.endpoint[0]), self.endpoint[1]))
            loop = asyncio.get_running_loop()
            loop.add_reader(opened, self._answer, opened, readers)
            try:
                yield
            finally:
                loop.remove_reader(opened)

    def _answer(self, opened: socket.socket, readers: list[Codec]) -> None:
        data, source = opened.recvfrom(1 << 16)
        for reader in readers:
            try:
                probe: Datagram = reader.parse(data)
            except DatagramError:
                continue
            if probe.kind == BodyKind.PROBE:
                nonce = parse_probe(probe.body).nonce
                answer = ProbeAnswer(nonce, 1, *self.endpoint, self.endpoint[0])
                to_uid = uid_of(probe.public_key)
                body = encode_answer(answer)
                opened.sendto(self._codec.encode(BodyKind.ANSWER, body, to_uid=to_uid), source)


def test_what_a_member_says_of_a_nodes_nat_leads_no_other_to_that_member() -> None:
    """Where no relay says otherwise the node believes it, and tells it. Whoever asks there gets no
    answer that the node has signed, and goes on by the way that was proven."""
    with contextlib.closing(PathBed()) as bed:
        internet = bed.router()
        watcher, _ = behind_nat(bed, internet, 1)
        victim, _ = behind_nat(bed, internet, 2)
        liar = Liar(public(bed, internet, 3))

        async def scenario() -> None:
            async with running(watcher, victim):
                with liar.answering(watcher, victim):
                    for node in (watcher, victim):
                        node.membership.offer(introduction(liar), source=Source.CLOUD)
                    await on(watcher, victim, transports.TUNNEL)
                    await until(lambda: seen_by(liar, victim))
                    nat = NatView()
                    nat.network_changed([ip_address("10.2.0.2")])
                    for each in seen_by(liar, victim):
                        nat.see(each.asked, each.seen, 0, peer="liar")
                    assert nat.mapped(0) == (liar.endpoint,)

                    victim.endpoints = nat.mapped(0)
                    victim.read_links()
                    victim.tell(watcher)
                    await lied_to(watcher, victim, 1)
                    proven = watcher.path(victim)
                    assert proven is not None
                    assert proven.endpoint == (ip_address("203.0.113.10"), TUNNEL_PORT)
                    internet.run("nft", _CUT)
                    await lied_to(watcher, victim, 3)
                    after = watcher.path(victim)
                    assert after is None or after.endpoint != liar.endpoint

        asyncio.run(scenario())


async def lied_to(node: Node, about: Node, times: int) -> None:
    """The node asks wherever the other may be, until so many answers are not that one's."""
    enough = node.probing.counters["unproven"] + times

    async def ask() -> bool:
        await node.probing.measure(about.uid)
        return node.probing.counters["unproven"] >= enough

    await until_answered(ask)


def introduction(liar: Liar) -> list[Sealed]:
    said = presence(
        liar.node.number,
        addresses=(liar.endpoint[0],),
        endpoints=(liar.endpoint,),
        port=PORT,
        tunnel_port=TUNNEL_PORT,
    )
    return [seal_grant(liar.node.grant, CLUSTER_KEY), seal_presence(said, node_key(3))]


def seen_by(liar: Liar, node: Node) -> list[AnswerSeen]:
    """What it has told the node of where that one's probes came from."""
    return [
        each for each in node.told if isinstance(each, AnswerSeen) and each.uid == liar.node.uid
    ]
