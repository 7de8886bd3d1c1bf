"""What programs note of connected sockets: real sockets, real maps."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from limpet.agent.serving.sockets import AtSocket
from limpet.base.errors import KernelError
from limpet.base.settings import ServiceSettings
from limpet.datapath.services.part import ServicesContext, ServicesPart
from limpet.datapath.services.sockets.apply import PodNamespaces, SocketKernel
from limpet.datapath.services.sockets.connected_apply import CONNECTED_MAPS
from limpet.datapath.services.sockets.layout import CONNECTED, PLACES, SETS, read_peer
from limpet.datapath.services.sockets.pins_apply import AttachPoint, pins_of
from tests.beds.services.service_bed import ADDRESSES, WEB, endpoints_of, slices
from tests.beds.services.socket_bed import SocketBed, mounted
from tests.datapath.services.test_sockets import ANY, bed, datagrams, family, tracked
from tests.waiting import wait_until

__all__ = ["bed"]

_NOBODY = 1 << 60
"""No socket has that cookie, nor those behind it."""
_CONNECTING = """
import socket, sys
address, count = sys.argv[1], int(sys.argv[2])
made = []
for _ in range(count):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.connect((address, 53))
    made.append(one)
wrong = sum(one.getpeername() != (address, 53) for one in made)
print(wrong, flush=True)
sys.stdin.read()
"""


def test_sockets_of_many_processes_that_connect_at_once_are_all_noted(bed: SocketBed) -> None:
    _, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    count, processes = 1000, 6
    command = [sys.executable, "-c", _CONNECTING, ADDRESSES[0], str(count)]
    with ExitStack() as stack:
        asks = [
            stack.enter_context(
                subprocess.Popen(
                    ["nsenter", f"--net={bed.node.path}", *command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(processes)
        ]
        for each in asks:
            stack.callback(each.kill)
        for each in asks:
            assert each.stdout is not None
            assert each.stdout.readline() == "0\n"
        with bed.noted() as connected:
            noted = connected.read()
            assert len(noted) == count * processes
            some = list(noted)[:: count // 10]
            assert [connected.get(cookie) for cookie in some] == [noted[x] for x in some]
    wait_until(lambda: bed.count_noted() == 0, "what was closed is forgotten")


def test_a_socket_that_connects_again_keeps_its_place_and_has_it_till_it_asks_no_service(
    bed: SocketBed,
) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    with ExitStack() as stack:
        asks = datagrams(stack, one.netns, ADDRESSES[0])
        for _ in range(2 * PLACES):
            asks.connect((ADDRESSES[0], 53))
            assert asks.getpeername() == (ADDRESSES[0], 53)
        with bed.noted() as connected:
            (noted,) = connected.read().values()
        assert read_peer(noted)[1] == (socket.inet_aton(two.addresses[0]), 5353)
        asks.connect((two.addresses[0], 5353))
        assert bed.count_noted() == 0


def test_sockets_whose_endpoint_left_while_programs_were_away_are_ended_when_they_are_back(
    bed: SocketBed,
) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    links, sockets = bed.place.pins / "links", bed.part.sockets
    assert sockets is not None

    async def fail() -> None:  # the event loop's clock would try again
        bed.loop.run("test", bed.part)

    with ExitStack() as stack:
        asks = datagrams(stack, one.netns, ADDRESSES[0])
        asks.connect((ADDRESSES[0], 53))
        os.chown(links, 65534, 65534)  # which no agent pins in
        for path in links.iterdir():
            path.unlink()
        sockets.suspect(maps=False)
        with bed.node.entered():
            asyncio.run(fail())
        assert "user 65534 made it" in bed.why_not
        bed.put(*slices(*endpoints_of(*one.addresses)))
        os.chown(links, 0, 0)
        bed.run()
        assert bed.why_not == ""
        with pytest.raises(ConnectionAbortedError):
            asks.recv(64)
    assert bed.run() == 0


def test_an_attempt_to_attach_that_fails_leaves_no_descriptor(bed: SocketBed) -> None:
    """There is one each 30 s as long as what is wrong lasts."""
    with bed.node.entered(), open(os.devnull, "rb") as nothing:
        gc.collect()  # what earlier tests have left
        before = _descriptors()
        with closing(SocketKernel(bed.place, PodNamespaces(lambda: ()))) as kernel:
            kernel.open()
            loaded = _descriptors()
            for fd in loaded.keys() - before.keys():
                if loaded[fd] == "anon_inode:bpf-map":
                    os.dup2(nothing.fileno(), fd)  # which nobody can map

            with pytest.raises(KernelError, match="map eBPF map connected"):
                kernel.attach()

            assert _descriptors().keys() == loaded.keys()


def _descriptors() -> dict[int, str]:
    """What this process has open."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the folder itself
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def begin_with_nftables(bed: SocketBed, run_dir: Path) -> None:
    """As an agent does after one that has served at the socket."""
    begin_with(bed, run_dir, ServiceSettings())


def begin_with(bed: SocketBed, run_dir: Path, settings: ServiceSettings) -> None:
    bed.part.close()
    with bed.node.entered():
        pods = [each.netns.path for each in bed.pods]
        sockets = AtSocket(settings, run_dir, lambda: pods)
        asked = ServicesContext(lambda: bed.surroundings, lambda: bed.here, sockets.forgotten)
        bed.part = ServicesPart(bed.loop, bed.catalog, asked, sockets.side)
        bed.loop.add(bed.part)
        bed.run()
        sockets.begin()


def test_sockets_go_on_with_nftables_and_are_ended_when_their_endpoint_leaves(
    bed: SocketBed, tmp_path: Path
) -> None:
    """No rule turns them: what programs have noted of them stays as long as it is needed."""
    one, two = bed.pods
    with mounted("bpf", tmp_path / "bpf"), ExitStack() as stack:
        pins = pins_of(tmp_path)
        bed.end_agent(AttachPoint(pins, bed.cgroup.path))
        bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
        connected = []
        for client in (one.netns, bed.node):
            for address in ADDRESSES:
                connected.append(datagrams(stack, client, address))
                connected[-1].connect((address, 53))
        for _ in range(2):
            begin_with_nftables(bed, tmp_path)
            assert {path.name for path in pins.glob("*/*")} == set(CONNECTED_MAPS)
        for asks in connected:
            asks.send(b"goes on")
        bed.put(*slices(*endpoints_of(*one.addresses)))
        for asks in connected:
            with pytest.raises(ConnectionAbortedError):
                asks.recv(64)
            asks.close()
        begin_with_nftables(bed, tmp_path)
        assert not pins.exists()


def test_sockets_are_ended_with_their_endpoint_where_programs_cannot_be_loaded_any_more(
    bed: SocketBed, tmp_path: Path
) -> None:
    one, two = bed.pods
    with mounted("bpf", tmp_path / "bpf"), ExitStack() as stack:
        pins = pins_of(tmp_path)
        bed.end_agent(AttachPoint(pins, bed.cgroup.path))
        bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
        asks = datagrams(stack, one.netns, ADDRESSES[0])
        asks.connect((ADDRESSES[0], 53))
        os.chown(pins / "links", 65534, 65534)  # which no agent pins in
        begin_with(bed, tmp_path, ServiceSettings(backend="ebpf", cgroup=bed.cgroup.path))
        assert "user 65534 made it" in bed.why_not
        asks.send(b"goes on")

        bed.put(*slices(*endpoints_of(*one.addresses)))

        with pytest.raises(ConnectionAbortedError):
            asks.recv(64)


def test_what_finds_its_set_full_is_served_by_nftables_until_there_is_room(bed: SocketBed) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    nobody = {_NOBODY + place for place in range(PLACES * SETS)}
    assert bed.part.sockets is not None
    with bed.noted() as connected, ExitStack() as stack:
        held = stack.enter_context(closing(bed.part.sockets.kernel.maps([CONNECTED])[CONNECTED]))
        with held.mapped() as values:
            values[:] = struct.pack(f"={len(nobody)}Q", *nobody)
        for address in ADDRESSES:
            server = stack.enter_context(two.netns.listening(ANY[family(address)], 8080))
            with one.netns.connected(address, 80) as here, server.accept()[0]:
                assert here.getpeername()[:2] == (address, 80)
            assert tracked(bed.node, address) != ""
            server.close()
        assert connected.read().keys() == nobody
        connected.forget(nobody)
        assert not connected.read()
        server = stack.enter_context(two.netns.listening(ANY[4], 8080))
        with one.netns.connected(ADDRESSES[0], 80), server.accept()[0]:
            assert len(connected.read()) == 1


def test_places_of_sockets_of_whose_end_no_program_hears_are_given_back(bed: SocketBed) -> None:
    """Those that the kernel made for itself: a place that is not given back is lost for ever."""
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    assert bed.part.sockets is not None
    with bed.noted() as connected, ExitStack() as stack:
        stays = datagrams(stack, one.netns, ADDRESSES[0])
        stays.connect((ADDRESSES[0], 53))
        open_before = connected.read().keys()
        held = stack.enter_context(closing(bed.part.sockets.kernel.maps([CONNECTED])[CONNECTED]))
        with held.mapped() as values, values.cast("Q") as cookies:
            cookies[next(place for place, cookie in enumerate(cookies) if not cookie)] = _NOBODY
        for expected in ({*open_before, _NOBODY}, set(open_before)):
            bed.part.resync()
            bed.run()
            assert connected.read().keys() == expected
        assert stays.getpeername() == (ADDRESSES[0], 53)
