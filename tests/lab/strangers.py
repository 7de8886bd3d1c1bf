"""What a node that means no good does across sites, and what a relay gets to see."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

from limpet.cluster.keys import public_key_of
from limpet.datapath.tunnel.key import tunnel_public_key
from limpet.datapath.tunnel.wireguard.process import SOCKET_FOLDER
from limpet.datapath.tunnel.wireguard.uapi_codec import END, GET, parse_get
from limpet.lab.command import run_command
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.tunnels import tunnel_ifname
from tests.lab.forging import PORT

SEND_RAW = """
import socket, struct, sys
source, target, port, text = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].encode()
family = socket.AF_INET6 if ":" in source else socket.AF_INET
ends = socket.inet_pton(family, source) + socket.inet_pton(family, target)
udp = struct.pack("!HHHH", 5000, port, 8 + len(text), 0) + text
if family == socket.AF_INET:
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + ends
else:
    head = struct.pack("!IHBB", 6 << 28, len(udp), 17, 64) + ends
    summed = ends + struct.pack("!II", len(udp), 17) + udp + bytes(len(udp) % 2)
    total = sum(struct.unpack(f"!{len(summed) // 2}H", summed))
    total = (total & 0xFFFF) + (total >> 16)
    udp = udp[:6] + struct.pack("!H", 0xFFFF - (total & 0xFFFF) - (total >> 16)) + udp[8:]
with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as s:
    s.sendto(head + udp, (target, 0))
"""
_CAPTURE = """
import socket
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as s:
    s.bind(("eth0", 0))
    print("up", flush=True)
    while True:
        frame = s.recv(65536)
        if frame[12:14] == b"\\x08\\x00" and frame[23] == 17:
            ports = int.from_bytes(frame[34:36], "big"), int.from_bytes(frame[36:38], "big")
            if any(21000 <= port <= 22999 for port in ports):
                print(frame[42:].hex(), flush=True)
"""
_SAY = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as s:
    s.settimeout(0.2)
    s.connect((sys.argv[1], 7))
    answered = 0
    while answered < 20:
        s.send(sys.argv[2].encode())
        try:
            answered += s.recv(4096).decode() == sys.argv[2]
        except TimeoutError:
            pass
"""
SECRET = "nobody but the two is to read this, however often it is said. " * 3


def tunnel_key(machine: Machine) -> bytes:
    """Public one of the node's tunnel."""
    private_key = (machine.disk / "state/cluster/node.key").read_bytes()
    return tunnel_public_key(public_key_of(private_key))


def tunnel_peers(machine: Machine) -> set[bytes]:
    """Public keys that the node's tunnel knows."""
    return set(keepalives(machine))


def keepalives(machine: Machine) -> dict[bytes, int]:
    """Seconds between those that the node's tunnel sends, by the peer's public key; 0: none."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(SOCKET_FOLDER / f"{tunnel_ifname(machine.name)}.sock"))
        connection.sendall(GET)
        answer = b""
        while not answer.endswith(END):
            answer += connection.recv(1 << 16)
    return {key: each.peer.keepalive_s for key, each in parse_get(answer).peers.items()}


def send_by_tunnel(sender: Machine, target: LabPod, source: LabPod) -> None:
    """A datagram to the target from the source's IPv4 address, made on the sender's node."""
    here, there = (
        next(str(each.ip) for each in pod.addresses if each.version == 4)
        for pod in (source, target)
    )
    words = (here, there, str(PORT), f"from {source.name}")
    run_command(sys.executable, "-c", SEND_RAW, *words, netns=sender.name)


def say_in_secret(source: LabPod, target: object) -> None:
    """A pod that echoes hears `SECRET` twenty times, and says it back."""
    run_command(sys.executable, "-c", _SAY, str(target), SECRET, netns=source.netns)


@contextlib.contextmanager
def capturing(relay: Machine) -> Iterator[list[bytes]]:
    """Payloads of the datagrams of pairs that the relay gets and sends while it lasts."""
    process = subprocess.Popen(
        ["nsenter", f"--net={relay.netns_path}", sys.executable, "-c", _CAPTURE],
        stdout=subprocess.PIPE,
        text=True,
    )
    output = process.stdout
    assert output is not None
    assert output.readline() == "up\n"
    packets: list[bytes] = []
    reader = threading.Thread(
        target=lambda: packets.extend(bytes.fromhex(line.strip()) for line in output)
    )
    reader.start()
    try:
        yield packets
    finally:
        process.kill()
        process.wait()
        reader.join()
        output.close()
