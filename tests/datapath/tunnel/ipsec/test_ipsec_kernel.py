"""IPsec where the kernel makes ESP: what it does beside test_ipsec.py."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from limpet.base.ownership import IPSEC_IFNAME, TUNNEL_MARK
from limpet.cluster.datagrams.peer_datagram import MAGIC
from limpet.cluster.datagrams.shared_port import SharedPort
from limpet.datapath.tunnel.diff import DropTunnel
from limpet.datapath.tunnel.ipsec.esp import drop_sas
from limpet.datapath.tunnel.ipsec.port import IPSEC_PORT
from tests.beds.namespaces import NetnsFactory
from tests.beds.overlay_bed import ping
from tests.beds.tunnel_bed import TunnelBed
from tests.datapath.tunnel.ipsec.ipsec_bed import IpsecTunnel, KernelEspTunnel, skip_without_esp
from tests.waiting import PATIENCE_S, wait_until

_FULL = ("-s", "1340", "-W", "15")
"""IPv6 takes 48 bytes more."""

pytestmark = pytest.mark.usefixtures("_esp")


@pytest.fixture
def _esp() -> None:
    skip_without_esp()


class MixedTunnel(IpsecTunnel):
    """The first node's kernel makes ESP, the other's has none."""

    def restart(self) -> None:
        self.in_kernel = self.node.number == 1
        super().restart()


def test_a_kernels_esp_and_a_daemons_understand_each_other(tmp_path: Path) -> None:
    bed = TunnelBed(2, tmp_path, kind=MixedTunnel)
    with bed.undo:
        kinds = []
        for tunnel in bed.tunnels:
            link = tunnel.node.route.link(IPSEC_IFNAME)
            assert link is not None
            kinds.append(link.kind)
        assert kinds == ["xfrm", "tun"]
        # Two ends that began at once have two until one has cleared up.
        for _ in range(2):
            for one, other in bed.pairs():
                for inner in (4, 6):
                    ping(one.node.pod, other.node.address(inner), *_FULL)
            for tunnel in bed.tunnels:
                assert isinstance(tunnel, IpsecTunnel)
                wait_until(lambda: len(tunnel.sas()) == 1)  # noqa: B023


class PortSharingTunnel(KernelEspTunnel):
    inner_port = IPSEC_PORT


@pytest.mark.parametrize("kind", [KernelEspTunnel, PortSharingTunnel])
def test_probes_go_by_the_port_of_the_kernels_esp(
    tmp_path: Path, kind: type[KernelEspTunnel]
) -> None:
    bed = TunnelBed(2, tmp_path, kind=kind)
    with bed.undo:
        one, other = bed.tunnels
        with (
            one.node.netns.open_socket(4, socket.SOCK_DGRAM) as here,
            other.node.netns.open_socket(4, socket.SOCK_DGRAM) as there,
        ):
            for tunnel, agents in ((one, here), (other, there)):
                agents.bind(("0.0.0.0", 0))
                agents.settimeout(PATIENCE_S)
                with tunnel.node.netns.entered():
                    shared = SharedPort()
                    shared.put(tunnel.key.port, {4: agents.getsockname()[1]})
                    shared.close()
            for _ in range(3):
                ping(one.node.pod, other.node.address(4), *_FULL)
                here.sendto(MAGIC + b"a probe", (bed.underlay(other.node, 4), other.key.port))

                said, source = there.recvfrom(100)

                assert said == MAGIC + b"a probe"
                assert source == (bed.underlay(one.node, 4), one.key.port)
        assert one.reading(other).peer.endpoint == bed.endpoint(other)


def test_a_killed_daemon_leaves_nothing_that_the_next_would_not_clear(tmp_path: Path) -> None:
    bed = TunnelBed(2, tmp_path, kind=KernelEspTunnel)
    with bed.undo:
        one, other = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        pid = one.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: one.node.route.link(IPSEC_IFNAME) is None)
        assert "if_id" in one.node.netns.run("ip", "xfrm", "state")

        bed.settle_tunnels()

        for tunnel, peer in bed.pairs():
            tunnel.connect([peer])
        ping(one.node.pod, other.node.address(6))
        with one.node.netns.entered():
            assert one.kernel.apply([DropTunnel(IPSEC_IFNAME)]) == []
        assert one.node.netns.run("ip", "xfrm", "state") == ""
        assert "if_id" not in one.node.netns.run("ip", "xfrm", "policy")


def test_an_agent_that_comes_back_after_its_daemon_has_gone_makes_all_of_it_anew(
    tmp_path: Path,
) -> None:
    bed = TunnelBed(2, tmp_path, kind=KernelEspTunnel)
    with bed.undo:
        one, other = bed.tunnels
        pid = one.pid
        assert pid is not None
        one.kernel.close()
        del one.kernel
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
        assert one.node.route.link(IPSEC_IFNAME) is not None
        one.restart()

        bed.settle_tunnels()

        one.connect([other])
        ping(one.node.pod, other.node.address(4))


def test_the_kernels_esp_of_others_is_left_alone(make_netns: NetnsFactory) -> None:
    netns = make_netns()
    netns.ip("link add theirs type xfrm if_id 7")
    address = "src 192.0.2.1 dst 192.0.2.2"
    aead = f"aead rfc4106(gcm(aes)) 0x{'00' * 20} 128"
    more = f"reqid 1 mode tunnel {aead}"
    for spi, extra in (("0x1001", ""), ("0x1002", "if_id 7"), ("0x1003", "if_id 0x6c696d08")):
        netns.ip(f"xfrm state add {address} proto esp spi {spi} {more} {extra}")
        network = f"10.{spi[-1]}.0.0/16"
        template = f"tmpl {address} proto esp reqid 1 mode tunnel"
        netns.ip(f"xfrm policy add src {network} dst {network} dir out {template} {extra}")

    with netns.entered():
        drop_sas()

    states, policies = netns.run("ip", "xfrm", "state"), netns.run("ip", "xfrm", "policy")
    assert [f"0x0000100{number}" in states for number in (1, 2, 3)] == [True, True, False]
    assert [f"10.{number}.0.0" in policies for number in (1, 2, 3)] == [True, True, False]
    assert "theirs" in netns.run("ip", "link")


def test_what_the_kernel_sends_for_the_tunnel_is_kept_out_of_the_tunnel(tmp_path: Path) -> None:
    bed = TunnelBed(2, tmp_path, kind=KernelEspTunnel)
    with bed.undo:
        states = bed.tunnels[0].node.netns.run("ip", "-d", "xfrm", "state")
        assert f"output-mark {TUNNEL_MARK:#x}" in states
