"""The record of a network that goes on without Limpet is its own, whatever is purged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.ipam.hostlocal import JOURNAL
from tests.cli.install.test_install import LIMPET, SOCKET, cni, limpet
from tests.clients.machine import CHECKOUT, Machine
from tests.waiting import wait_until

RECORDS = "/var/lib/cni/networks/cbr0"


@pytest.fixture
def left() -> Iterator[Machine]:
    """A machine that Limpet was on, with a record of addresses that host-local has had before."""
    with Machine() as machine:
        machine.write(f"{RECORDS}/10.244.7.8_default_web-0", "")
        words = ("install", "--segment", "10.244.7.0/24", "--network-name", "cbr0")
        machine.try_run(*LIMPET, *words)  # which does not run the agent without systemd
        machine.start(*LIMPET, "agent")
        wait_until(machine.path(SOCKET).exists, "the agent listens")
        limpet(machine, *words)
        with machine.namespace("c1"):
            cni(machine, "ADD", "c1")
            cni(machine, "DEL", "c1")
        limpet(machine, "uninstall")
        yield machine


def test_what_host_local_has_given_since_is_not_purged(left: Machine) -> None:
    left.write(f"{RECORDS}/10.244.7.9", "c0ffee\r\neth0")

    said = limpet(left, "uninstall", "--purge")

    assert f"left alone: {RECORDS}: containers hold addresses of it, 10.244.7.9 among" in said
    assert left.path(f"{RECORDS}/10.244.7.9").exists()
    assert left.path(f"{RECORDS}/10.244.7.8_default_web-0").exists()


def test_a_record_of_which_nobody_holds_an_address_is_purged_later_as_well(left: Machine) -> None:
    said = limpet(left, "uninstall", "--purge")

    assert f"{RECORDS}: address records removed" in said
    assert not left.path(RECORDS).exists()


def test_a_node_that_is_installed_again_goes_on_with_its_network(left: Machine) -> None:
    """Pods that come back would get other addresses than those that are kept for them."""
    said = limpet(left, "install", "--dry-run")

    assert f"address records in {RECORDS} are adopted" in said


@pytest.mark.parametrize("held", ["10.244.7.9", "fd00:7::9"])
def test_the_package_does_not_purge_it_either(left: Machine, held: str) -> None:
    other = Path(RECORDS).with_name("limpet")
    left.write(f"{RECORDS}/{held}", "c0ffee\r\neth0")
    left.write(f"{other}/{JOURNAL}", "")
    left.write(f"{other}/10.244.7.8_default_web-0", "")
    script = (CHECKOUT / "deploy" / "debian" / "postrm").read_text().replace("@JOURNAL@", JOURNAL)

    done = left.try_run("sh", "-s", "purge", stdin=script)

    assert done.returncode == 0
    assert f"limpet: {RECORDS} stays: containers hold addresses of it" in done.stderr
    assert left.path(f"{RECORDS}/{held}").exists()
    assert left.path(f"{RECORDS}/10.244.7.8_default_web-0").exists()
    assert not left.path(str(other)).exists()
