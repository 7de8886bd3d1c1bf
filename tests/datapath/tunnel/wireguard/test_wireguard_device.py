"""The tunnel's device and the program behind it, without a node around them."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from limpet.base.errors import KernelError
from limpet.datapath.tunnel.diff import DropTunnel, PutTunnel, diff_tunnel
from limpet.datapath.tunnel.state import TunnelDevice, TunnelPeer, TunnelState
from limpet.datapath.tunnel.wireguard import netlink_codec as kernel_wire
from limpet.datapath.tunnel.wireguard.apply import TunnelKernel
from limpet.datapath.tunnel.wireguard.process import WireguardProcess
from limpet.linux.netlink.socket import NetlinkSocket, RouteSocket
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.tunnel_bed import TunnelWithoutKernel, skip_without_kernel_wireguard, wireguard_go


@pytest.fixture
def lone(make_netns: NetnsFactory, tmp_path: Path) -> Iterator[Lone]:
    made = Lone(make_netns("wg"), tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["wireguard-go", "wireguard-kernel"])
def either(
    make_netns: NetnsFactory, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Lone]:
    """What holds whoever makes the tunnel."""
    in_kernel = request.param == "wireguard-kernel"
    if in_kernel:
        skip_without_kernel_wireguard()
    made = Lone(make_netns("wg"), tmp_path, in_kernel=in_kernel)
    yield made
    made.close()


class Lone:
    """A namespace for a tunnel without a node around it."""

    def __init__(self, netns: Netns, folder: Path, *, in_kernel: bool = False) -> None:
        self.in_kernel = in_kernel
        self.netns = netns
        self.folder = folder
        self._undo = ExitStack()
        self.ifname = f"lwg{os.getpid() % 10**7}.x"
        with netns.entered():
            self.route = RouteSocket()
        private = X25519PrivateKey.generate()
        self.want = TunnelState(TunnelDevice(self.ifname, 1420, private.private_bytes_raw(), 51000))

    def kernel(self, route: RouteSocket | None = None, program: str = "") -> TunnelKernel:
        """As of an agent that has just started."""
        kind = TunnelKernel if self.in_kernel else TunnelWithoutKernel
        made = kind(
            route or self.route,
            log=self.folder / "wireguard.log",
            ifname=self.ifname,
            program=program or wireguard_go(),
        )
        self._undo.callback(made.close)
        return made

    def settle(self, kernel: TunnelKernel, want: TunnelState) -> list[KernelError]:
        with self.netns.entered():
            return kernel.apply(diff_tunnel(want, kernel.observe(want), kernel.given))

    def programs(self) -> list[int]:
        """Process ids of userspace tunnels of this name."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (
                    (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                )
            except (FileNotFoundError, ProcessLookupError):
                continue
            if words[1:3] == [b"-f", self.ifname.encode()]:
                found.append(int(entry.name))
        return found

    def close(self) -> None:
        kernel = self.kernel()
        with self.netns.entered():
            link = self.route.link(self.ifname)
            if link is not None and kernel.observe(self.want).device is not None:
                kernel.apply([DropTunnel(self.ifname)])
        self._undo.close()
        self.route.close()


def test_two_agents_that_start_at_once_start_one_program(lone: Lone) -> None:
    failures: list[KernelError] = []
    ready = threading.Barrier(4)

    def start() -> None:
        with lone.netns.entered(), RouteSocket() as route:
            kernel = lone.kernel(route)
            want = kernel.observe(lone.want)
            ready.wait()
            failures.extend(kernel.apply(diff_tunnel(lone.want, want, kernel.given)))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(lone.programs()) == 1


@pytest.mark.parametrize("is_whole", [False, True], ids=["just started", "set up"])
def test_a_device_that_another_agent_made_since_it_was_looked_for_is_taken_as_it_is(
    lone: Lone, is_whole: bool
) -> None:
    late, other = lone.kernel(), lone.kernel()
    with lone.netns.entered():
        seen = late.observe(lone.want)
        if is_whole:
            assert lone.settle(other, lone.want) == []
        else:
            WireguardProcess(
                lone.ifname, log=lone.folder / "wireguard.log", program=wireguard_go()
            ).start()
        programs = lone.programs()
        assert late.apply(diff_tunnel(lone.want, seen, late.given)) == []
        assert diff_tunnel(lone.want, late.observe(lone.want), late.given) == []
    assert lone.programs() == programs
    assert len(programs) == 1


_AGENT = """
import sys
from pathlib import Path
from limpet.linux.netlink.socket import RouteSocket
from limpet.datapath.tunnel.wireguard.apply import TunnelKernel
from limpet.datapath.tunnel.state import TunnelDevice
from limpet.datapath.tunnel.diff import PutTunnel
ifname, log, program = sys.argv[1:]
TunnelKernel._kernels = lambda _self: None  # as on a kernel without WireGuard
kernel = TunnelKernel(RouteSocket(), log=Path(log), ifname=ifname, program=program)
assert kernel.apply([PutTunnel(TunnelDevice(ifname, 1420, bytes(31) + b"\1", 51000))]) == []
"""


def test_the_program_outlives_the_agent(lone: Lone) -> None:
    command = [sys.executable, "-c", _AGENT, lone.ifname, str(lone.folder / "log"), wireguard_go()]
    lone.netns.run(*command)

    kernel = lone.kernel()
    with lone.netns.entered():
        device = kernel.observe(lone.want).device

    assert device is not None
    assert (device.port, device.ours, device.up) == (51000, True, True)
    assert len(lone.programs()) == 1


def test_a_thousand_peers_are_configured_and_read_back_as_planned(either: Lone) -> None:
    kernel = either.kernel()
    want = TunnelState(either.want.device, dict(map(numbered_peer, range(1000))))

    assert either.settle(kernel, want) == []

    with either.netns.entered():
        have = kernel.have
        assert kernel.observe(want) == have == want


def numbered_peer(number: int) -> tuple[bytes, TunnelPeer]:
    high, low = divmod(number, 250)
    key = X25519PrivateKey.generate().public_key().public_bytes_raw()
    prefixes = (ip_network(f"10.{high}.{low}.0/24"), ip_network(f"fd00:0:0:{number:x}::/64"))
    endpoint = ip_address("192.0.2.9"), 1000 + number
    return key, TunnelPeer(key, frozenset(prefixes), endpoint, 0)


def test_nothing_is_left_of_a_tunnel_that_is_not_wanted_any_more(either: Lone) -> None:
    kernel = either.kernel()
    assert either.settle(kernel, either.want) == []

    assert either.settle(kernel, TunnelState()) == []

    assert either.programs() == []
    assert either.route.link(either.ifname) is None
    assert either.settle(kernel, either.want) == []


def test_what_differs_on_the_device_is_set_and_nothing_else(either: Lone) -> None:
    kernel = either.kernel()
    assert either.settle(kernel, either.want) == []
    programs = either.programs()
    assert len(programs) == (0 if either.in_kernel else 1)
    device = either.want.device
    assert device is not None

    # Below 1280 the kernel takes IPv6 off the link.
    for change in (
        {"mtu_bytes": 1200},
        {"mtu_bytes": 1380},
        {"port": 51001},
        {"mark": 7},
        {"private_key": b"k" * 32},
    ):
        want = TunnelState(replace(device, **change))
        assert either.settle(kernel, want) == []
        with either.netns.entered():
            found = kernel.observe(want).device
        assert found is not None
        # WireGuard clamps a private key. Source: RFC 7748, section 5.
        assert replace(found, private_key=b"") == replace(want.device or found, private_key=b"")
    either.netns.ip(f"link set {either.ifname} down")
    assert either.settle(kernel, either.want) == []
    assert either.programs() == programs


def test_a_port_that_another_program_has_is_told_with_what_to_do(either: Lone) -> None:
    with either.netns.open_socket(4, socket.SOCK_DGRAM) as other:
        other.bind(("0.0.0.0", 51000))

        (failure,) = either.settle(either.kernel(), either.want)

    assert "another program has the tunnel's UDP port" in str(failure)
    assert either.settle(either.kernel(), either.want) == []


def test_a_missing_program_is_told_with_what_to_install(lone: Lone) -> None:
    (failure,) = lone.settle(lone.kernel(program="/nowhere/wireguard-go"), lone.want)

    assert "install the package wireguard-go" in str(failure)


def test_a_program_that_ends_at_once_is_told_with_its_words(lone: Lone, tmp_path: Path) -> None:
    program = tmp_path / "wireguard-go"
    program.write_text("#!/bin/sh\necho no tunnels today >&2\nexit 3\n", encoding="ascii")
    program.chmod(0o755)

    (failure,) = lone.settle(lone.kernel(program=str(program)), lone.want)

    assert "it ended at once: no tunnels today" in str(failure)


def test_a_link_of_the_name_that_is_not_ours_is_left_alone(either: Lone) -> None:
    either.netns.ip(f"link add {either.ifname} type bridge")

    (failure,) = either.settle(either.kernel(), either.want)

    assert "somebody else made it" in str(failure)
    link = either.route.link(either.ifname)
    assert link is not None
    assert (link.kind, link.up) == ("bridge", False)
    assert either.settle(either.kernel(), TunnelState()) == []
    assert either.want.device is not None
    with either.netns.entered():  # also without having looked
        assert len(either.kernel().apply([PutTunnel(either.want.device)])) == 1
    assert either.route.link(either.ifname) == link


def test_a_tunnel_of_the_same_name_in_another_namespace_is_told(
    lone: Lone, make_netns: NetnsFactory, tmp_path: Path
) -> None:
    assert lone.settle(lone.kernel(), lone.want) == []
    second = Lone(make_netns("wg2"), tmp_path)

    (failure,) = second.settle(second.kernel(), second.want)

    assert "in another network namespace" in str(failure)
    assert len(lone.programs()) == 1
    second.route.close()


def test_what_the_program_says_does_not_fill_the_disk(lone: Lone) -> None:
    kernel = lone.kernel()
    assert lone.settle(kernel, lone.want) == []
    log = lone.folder / "wireguard.log"
    with open(log, "ab") as said:
        said.write(b"Failed to send handshake initiation\n" * 20000)

    assert lone.settle(kernel, lone.want) == []

    assert log.stat().st_size == 0


def test_one_peer_that_is_refused_keeps_no_other_out(either: Lone) -> None:
    good, bad = numbered_peer(1), numbered_peer(2)
    want = TunnelState(either.want.device, dict([good, bad]))
    cut = bad[0][:31]
    kernel = either.kernel()

    failures = either.settle(
        kernel, TunnelState(want.device, {good[0]: good[1], cut: replace(bad[1], public_key=cut)})
    )

    assert len(failures) == 1
    assert kernel.have.peers[good[0]] == good[1]
    assert either.settle(kernel, want) == []
    with either.netns.entered():
        assert kernel.observe(want) == want


def test_a_family_of_generic_netlink_is_found_by_its_name() -> None:
    with NetlinkSocket(kernel_wire.NETLINK_GENERIC) as netlink:
        answer = netlink.query(kernel_wire.get_family("nlctrl"))

        assert kernel_wire.parse_family(answer) == 0x10
        with pytest.raises(KernelError, match="netlink family lwg-none: ENOENT"):
            netlink.query(kernel_wire.get_family("lwg-none"))


class KernelThatCameLater(TunnelWithoutKernel):
    """The kernel has got WireGuard since the program was started."""

    has_kernels = True


def test_a_device_of_the_programs_stays_so_when_the_kernel_has_got_wireguard(lone: Lone) -> None:
    assert lone.kernel().is_userspace
    lone.settle(lone.kernel(), lone.want)
    with lone.netns.entered():
        later = KernelThatCameLater(lone.route, log=lone.folder / "log", ifname=lone.ifname)
        assert not later.is_userspace
        later.observe(lone.want)
        assert later.is_userspace
