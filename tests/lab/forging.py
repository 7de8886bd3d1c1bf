"""A node of a world that writes what it likes on the wire, and what the others make of it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.datapath.overlay.filter.ruleset import FORGED_COUNTER
from limpet.lab.command import run_command
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from tests.datapath.overlay.test_overlay_filter import forge

PORT = 5000
"""That forged packets go to."""
_SEND_UDP = """
import socket, sys
with socket.socket(int(sys.argv[1]), socket.SOCK_DGRAM) as s:
    s.sendto(bytes.fromhex(sys.argv[4]), (sys.argv[2], int(sys.argv[3])))
"""
_SEND_FRAME = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as s:
    s.bind(("eth0", 0))
    s.send(bytes.fromhex(sys.argv[1]))
"""
_HEAR = """
import socket
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.bind(("::", 5000))
    print("up", flush=True)
    print(s.recv(64).decode(), flush=True)
"""
_FAMILIES = {4: 2, 6: 10}


def dropped(machine: Machine) -> int:
    """Packets whose source was not the sender's, as the node has counted them."""
    text = machine.run("nft", "-j", "list", "counter", "inet", NFT_OVERLAY_TABLE, FORGED_COUNTER)
    (counted,) = [each["counter"] for each in json.loads(text)["nftables"] if "counter" in each]
    return int(counted["packets"])


def send_datagram(netns: str, address: object, port: int, data: bytes) -> None:
    family = _FAMILIES[6 if ":" in str(address) else 4]
    words = (str(family), str(address), str(port), data.hex())
    run_command(sys.executable, "-c", _SEND_UDP, *words, netns=netns)


def send_in_vxlan(sender: Machine, target: Machine, source: object, pod: LabPod) -> None:
    """A packet from `source` to the pod, to the target's VXLAN port of each underlay family."""
    version = 6 if ":" in str(source) else 4
    inner = next(each.ip for each in pod.addresses if each.version == version)
    for underlay in target.addresses:
        mac = target.links()[f"limvx{underlay.version}"]["address"]
        packet = forge(str(source), str(inner), mac=mac)
        send_datagram(sender.name, underlay.ip, 8472, packet)


def send_in_clear(sender: Machine, target: Machine, source: object, pod: LabPod) -> None:
    """The same on the link that the two share."""
    version = 6 if ":" in str(source) else 4
    inner = next(each.ip for each in pod.addresses if each.version == version)
    packet = forge(str(source), str(inner), mac=target.links()["eth0"]["address"])
    frame = packet[8:]  # VXLAN's header, and then a frame as it is
    run_command(sys.executable, "-c", _SEND_FRAME, frame.hex(), netns=sender.name)


@contextlib.contextmanager
def hearing(pod: LabPod) -> Iterator[subprocess.Popen[str]]:
    """Within the block the pod listens; the process prints the first datagram that comes."""
    process = subprocess.Popen(
        ["nsenter", f"--net={pod.netns_path}", sys.executable, "-c", _HEAR],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
