"""Programs of an agent whose maps are laid out otherwise are replaced while sockets are open."""

from __future__ import annotations

import hashlib
import os
import re
import select
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from limpet.agent.serving.sockets import AtSocket
from limpet.base.addresses import packed
from limpet.base.settings import ServiceSettings
from limpet.datapath.services.sockets import layout
from limpet.datapath.services.sockets.apply import SocketKernel
from limpet.datapath.services.sockets.layout import FRONTENDS, NOTED_MAPS
from limpet.datapath.services.sockets.pins_apply import (
    LINKS,
    MAPS,
    NOTED,
    SENDING_PROGRAMS,
    AttachPoint,
)
from limpet.linux.bpf.library import Bpf
from limpet.services.values import EndpointSlice, Service, ServicePort
from tests.beds.namespaces import NetnsFactory, talk
from tests.beds.services.service_bed import ADDRESSES, WEB, endpoints_of, slices
from tests.beds.services.socket_bed import SocketBed
from tests.datapath.services.test_connected_sockets import begin_with_nftables
from tests.datapath.services.test_sockets import (
    ANY,
    answers,
    attached_to,
    bed,
    datagrams,
    echo,
    family,
    tracked,
    who_gets,
)
from tests.waiting import PATIENCE_S, wait_until

__all__ = ["bed"]

SOURCE = Path(__file__).parents[3] / "bpf" / "services.bpf.c"
STICKY_ADDRESSES = ("10.96.0.8", "fd96::8")
STICKY = Service(
    "shop",
    "sticky",
    cluster_ips=STICKY_ADDRESSES,
    ports=(ServicePort("http", "TCP", 80),),
    affinity_s=600,
)
_HEAD_BYTES = 12
"""Of a frontend, before its first slots; the other layout has four more there."""
_OTHER_MAPS = "maps-99"
NOTED_SHAPE = "2e291720"


@pytest.fixture
def other_object(tmp_path: Path) -> Path:
    """Programs that look up frontends of another layout."""
    return built(SOURCE.read_text(), tmp_path)


def built(text: str, tmp_path: Path) -> Path:
    """Of that source, but with frontends of another layout."""
    source, found = tmp_path / "other.bpf.c", tmp_path / "other.bpf.o"
    here = "\t__u32 flags;\n"
    assert text.count(here) == 1
    source.write_text(text.replace(here, f"{here}\t__u32 more;\n"))
    include = f"/usr/include/{os.uname().machine}-linux-gnu"
    flags = ("-target", "bpf", "-mcpu=v3", "-O2", "-g", "-idirafter", include)
    subprocess.run(["clang", *flags, "-c", source, "-o", found], check=True, timeout=PATIENCE_S)
    return found


def serve_by(
    bed: SocketBed,
    path: Path,
    elements: Mapping[str, Mapping[bytes, bytes]],
) -> None:
    """Another agent's programs, with its maps and pins, are in force from then on."""
    pins = bed.place.pins
    for folder in (pins, *(pins / each for each in (LINKS, NOTED, _OTHER_MAPS))):
        folder.mkdir(mode=0o700)
    bpf = Bpf()
    loaded = bpf.load(
        path, lambda name: pins / (NOTED if name in NOTED_MAPS else _OTHER_MAPS) / name
    )
    assert bed.place.cgroup is not None
    cgroup = os.open(bed.place.cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name, held in elements.items():
            is_other = name == FRONTENDS
            loaded.maps[name].put(
                [(key, _other(value) if is_other else value) for key, value in held.items()]
            )
        for name, program in sorted(
            loaded.programs.items(), key=lambda x: x[0] in SENDING_PROGRAMS
        ):
            link = bpf.attach(program, cgroup)
            bpf.pin(link, pins / LINKS / name)
            os.close(link)
    finally:
        os.close(cgroup)
        loaded.close()


def _other(frontend: bytes) -> bytes:
    return frontend[:_HEAD_BYTES] + bytes(4) + frontend[_HEAD_BYTES:]


def planned(bed: SocketBed, *items: Service | EndpointSlice) -> dict[str, Mapping[bytes, bytes]]:
    """What is to be in maps of these Services; nothing is in the kernel of it yet."""
    names = [name for item in items for name in bed.catalog.put(item)]
    with bed.node.entered():
        bed.part.due(names)
        found = dict(bed.part.plan().sockets)
    bed.end_agent()
    return found


def test_open_sockets_go_on_when_an_agent_with_another_layout_of_maps_takes_over(
    bed: SocketBed, other_object: Path
) -> None:
    one, two = bed.pods
    everybody = endpoints_of(*one.addresses, *two.addresses)
    items: tuple[Service | EndpointSlice, ...] = (
        WEB,
        *slices(*everybody),
        STICKY,
        *slices(*everybody, service="sticky"),
    )
    serve_by(bed, other_object, planned(bed, *items))
    with ExitStack() as stack:
        open_before = [OpenSockets(stack, bed, number) for number in (0, 1)]

        assert bed.run() > 0
        assert bed.why_not == ""

        for each in open_before:
            each.go_on()
        assert {path.name for path in bed.place.pins.iterdir()} == {LINKS, MAPS, NOTED}
        assert counted(bed) == 2 * OpenSockets.COUNTED
        # Who is connected by UDP hears that the endpoint is gone.
        bed.put(*slices(*endpoints_of(*one.addresses)), *slices(service="sticky"))
        for each in open_before:
            each.are_ended_with_their_endpoint()
    wait_until(lambda: bed.count_noted() == 0, "what was closed is forgotten")


class OpenSockets:
    """Sockets of one family that programs have led to endpoints."""

    COUNTED = 10
    """Connections and flows of the Service that are not sticky."""

    def __init__(self, stack: ExitStack, bed: SocketBed, number: int) -> None:
        self._client = bed.pods[0].netns
        self._stack = stack
        self._address, self._sticky = ADDRESSES[number], STICKY_ADDRESSES[number]
        version = family(self._address)
        self._listening = [
            stack.enter_context(pod.netns.listening(ANY[version], 8080)) for pod in bed.pods
        ]
        self._asked = [datagrams(stack, pod.netns, pod.addresses[number], 5353) for pod in bed.pods]
        self._connection = stack.enter_context(self._client.connected(self._address, 80))
        self._server = self._accepted()
        self._kept_with = who_gets(stack, self._client, self._sticky, self._listening)
        self._connected = datagrams(stack, self._client, self._address)
        self._flows = [datagrams(stack, self._client, self._address) for _ in range(8)]
        self._endpoints: list[int] = []
        for each in self._flows:
            each.sendto(b"question", (self._address, 53))
            self._endpoints.append(answers(each, self._asked))
            assert each.recvfrom(64)[1][:2] == (self._address, 53)
        self._connected.connect((self._address, 53))
        self._connected.send(b"question")
        self._connected_to = answers(self._connected, self._asked)
        assert self._connected.recv(64) == b"question"
        # It is answered after the other agent has come.
        self._flows[0].sendto(b"under way", (self._address, 53))

    def _accepted(self) -> socket.socket:
        ready, _, _ = select.select(self._listening, [], [], PATIENCE_S)
        made = self._stack.enter_context(ready[0].accept()[0])
        made.settimeout(PATIENCE_S)
        return made

    def go_on(self) -> None:
        """All of them lead where they led, and show the Service's address."""
        asked = self._address, 53
        assert self._connection.getpeername()[:2] == (self._address, 80)
        self._connection.sendall(b"words")
        assert self._server.recv(64) == b"words"
        echo(self._asked[self._endpoints[0]])
        words, peer = self._flows[0].recvfrom(64)
        assert (words, peer[:2]) == (b"under way", asked)
        assert self._connected.getpeername()[:2] == asked
        self._connected.send(b"question")
        assert answers(self._connected, self._asked) == self._connected_to
        assert self._connected.recvfrom(64)[1][:2] == asked
        for each, endpoint in zip(self._flows, self._endpoints, strict=True):
            each.sendto(b"question", asked)
            assert answers(each, self._asked) == endpoint
            assert each.recvfrom(64)[1][:2] == asked
        again = {
            who_gets(self._stack, self._client, self._sticky, self._listening) for _ in range(8)
        }
        assert again == {self._kept_with}

    def are_ended_with_their_endpoint(self) -> None:
        """The second pod's serves no more."""
        if self._connected_to == 1:
            with pytest.raises(ConnectionAbortedError):
                self._connected.recv(64)
        else:
            self._connected.send(b"question")
            assert answers(self._connected, self._asked) == 0


def test_a_program_that_the_agent_which_takes_over_does_not_have_is_ended(
    bed: SocketBed, tmp_path: Path
) -> None:
    one, two = bed.pods
    path = built(SOURCE.read_text().replace("limpet_connect4", "limpet_join4"), tmp_path)
    serve_by(bed, path, planned(bed, WEB, *slices(*endpoints_of(*two.addresses))))

    bed.run()

    assert bed.why_not == ""
    assert not (bed.place.pins / LINKS / "limpet_join4").exists()
    bed.put(*slices(*endpoints_of(*one.addresses)))
    with one.netns.listening(ANY[4], 8080) as server:
        talk(two.netns, ADDRESSES[0], 80, server)


def test_an_agent_that_does_not_see_the_pins_of_the_one_before_it_ends_its_programs(
    bed: SocketBed, tmp_path: Path
) -> None:
    """As in a pod whose manifest has the mounts no more: nobody fills those programs' maps."""
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))

    begin_with_nftables(bed, tmp_path)

    assert {attached_to(path) for path in (bed.place.pins / LINKS).iterdir()} == {0}
    bed.put(*slices(*endpoints_of(*one.addresses)))
    with one.netns.listening(ANY[4], 8080), two.netns.connected(ADDRESSES[0], 80):
        assert tracked(bed.node, ADDRESSES[0]) != ""


def test_where_pins_can_be_made_no_more_programs_of_before_are_ended(bed: SocketBed) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    bed.end_agent(AttachPoint(Path("/proc/limpet"), bed.cgroup.path))
    bed.put(*slices(*endpoints_of(*one.addresses)))
    assert "no bpffs there" in bed.why_not
    with one.netns.listening(ANY[4], 8080), two.netns.connected(ADDRESSES[0], 80):
        assert tracked(bed.node, ADDRESSES[0]) != ""


def test_programs_of_another_node_of_the_same_machine_go_on(
    bed: SocketBed, make_netns: NetnsFactory, tmp_path: Path
) -> None:
    bed.put(WEB, *slices(*endpoints_of(*bed.pods[1].addresses)))
    foreign = make_netns("foreign")

    with foreign.entered():
        AtSocket(ServiceSettings(), tmp_path, lambda: ()).begin()
    # To a program a pod is not the node that it is on.
    with bed.pods[0].netns.entered():
        AtSocket(ServiceSettings(), tmp_path, lambda: ()).begin()

    assert _kernel(bed).damage() == ""


def _kernel(bed: SocketBed) -> SocketKernel:
    assert bed.part.sockets is not None
    return bed.part.sockets.kernel


def counted(bed: SocketBed) -> int:
    """Connections and flows of the Service that is not sticky."""
    assert bed.part.sockets is not None
    asked = {(6, packed(each), 80) for each in ADDRESSES} | {
        (17, packed(each), 53) for each in ADDRESSES
    }
    with bed.node.entered():
        counter = bed.part.sockets.counter()
        assert counter is not None
        with closing(counter):
            return sum(counter.count(asked).values())


def test_what_programs_note_is_laid_out_as_its_number_says() -> None:
    """Who changes it once others use it gives `NOTED_LAYOUT` another number, takes along what
    stands in the former, has the test above show that, and writes the new shape here."""
    text = re.sub(r"/\*.*?\*/", "", SOURCE.read_text(), flags=re.DOTALL)
    structs = re.findall(r"struct (\w+) \{[^}]*\};", text)
    maps = re.findall(r"struct \{[^}]*\} (\w+) SEC\(\"\.maps\"\);", text)
    assert set(NOTED_MAPS) <= set(maps)
    noted = (
        "address",
        "service",
        "target",
        "client",
        "kept",
        "flow",
        "answer",
        "peer",
        "set",
        "lock",
    )
    assert set(noted) <= set(structs)
    shape = [
        *(re.search(rf"struct {each} \{{[^}}]*\}};", text) for each in noted),
        *(re.search(rf"struct \{{[^}}]*\}} {each} SEC", text) for each in sorted(NOTED_MAPS)),
    ]
    words = " ".join(" ".join(each.group().split()) for each in shape if each is not None)
    found = hashlib.sha256(words.encode()).hexdigest()[:8]
    assert (layout.NOTED_LAYOUT, found) == (2, NOTED_SHAPE)
