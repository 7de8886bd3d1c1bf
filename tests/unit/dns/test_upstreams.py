"""Whom a node's resolv.conf names."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from limpet.base.bounds.servers import DNS_UPSTREAMS
from limpet.dns.forward.upstreams import read_upstreams

OWN = (ip_address("169.254.20.10"), ip_address("fd5b:9ad1:7e3c::53"))


def read(folder: Path, text: str) -> list[str]:
    path = folder / "resolv.conf"
    path.write_text(text)
    return list(map(str, read_upstreams(path, OWN)))


def test_servers_are_asked_in_their_order_and_each_once(tmp_path: Path) -> None:
    text = (
        "# of the node\nsearch example.com\noptions ndots:5\n"
        "nameserver 192.0.2.2\nnameserver 192.0.2.1 # second\n nameserver\t2001:db8::1\n"
        "nameserver 192.0.2.2\n"
    )
    assert read(tmp_path, text) == ["192.0.2.2", "192.0.2.1", "2001:db8::1"]


def test_our_own_addresses_are_left_out_however_they_are_written(tmp_path: Path) -> None:
    text = (
        "nameserver 169.254.20.10\nnameserver FD5B:9AD1:7E3C:0:0::53\n"
        "nameserver ::ffff:169.254.20.10\nnameserver 192.0.2.1\n"
    )
    assert read(tmp_path, text) == ["192.0.2.1"]


def test_nonsense_is_passed_over_and_no_file_is_no_server(tmp_path: Path) -> None:
    lines = ["nameserver", "nameserver here", "nameserver 192.0.2.999", "name server 192.0.2.1"]
    assert read(tmp_path, "\n".join(lines)) == []
    assert read_upstreams(tmp_path / "none", OWN) == ()
    many = "".join(f"nameserver 192.0.2.{n}\n" for n in range(1, 20))
    assert len(read(tmp_path, many)) == DNS_UPSTREAMS.most
