"""What is made of programs that set networks up."""

from __future__ import annotations

from pathlib import Path

from limpet.cli.doctor.machine.settings import examine_network_daemons


def test_programs_that_set_networks_up_are_named_until_they_are_told_of_us(tmp_path: Path) -> None:
    (tmp_path / "run/NetworkManager").mkdir(parents=True)
    (tmp_path / "run/systemd/netif").mkdir(parents=True)
    assert len(list(examine_network_daemons("limpet0", tmp_path))) == 2

    for path, text in (
        ("etc/NetworkManager/conf.d/limpet.conf", "unmanaged-devices=interface-name:lim*"),
        ("etc/systemd/networkd.conf.d/limpet.conf", "[Network]\nManageForeignRoutes=no\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    assert list(examine_network_daemons("limpet0", tmp_path)) == []
