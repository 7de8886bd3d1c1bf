"""An address is its live pod's, whatever becomes of the record, and kept for one that is away."""

from __future__ import annotations

import time
from ipaddress import ip_interface, ip_network
from pathlib import Path

import pytest

from limpet.base.errors import ExhaustedError, StorageError
from limpet.cni.attachment_plan import PlannedNetwork
from limpet.cni.ledgers import Ledgers
from limpet.cni.protocol.values import CniRequest, NetworkConf, Verb
from limpet.datapath.node.pod.attachment import Attachment, Netns, PodLink, PodName
from limpet.datapath.node.pod.attachments import Attachments
from limpet.ipam.leases import Holder, PodKey, Range

SUBNET = ip_network("10.7.0.0/29")
RANGES = [(Range(SUBNET, SUBNET[2], SUBNET[2], SUBNET[1]),)]
OLD, NEW = (Holder(name * 64, "eth0") for name in "ab")
POD = PodKey("default", "db-0", "eth0")


def test_an_older_sandbox_that_kept_its_interface_has_its_address_back(tmp_path: Path) -> None:
    attachments = Attachments(tmp_path / "run")
    ledgers = Ledgers(tmp_path / "lib", 0.0, attachments)
    ledger = ledgers.ledger("net")
    ledger.reserve(OLD, POD, RANGES, now_s=time.monotonic())
    attachments.put(
        Attachment(
            "net",
            OLD,
            Netns("/run/netns/old", 4, 1),
            PodName(POD.namespace, POD.pod),
            (ip_interface("10.7.0.2/29"),),
            (SUBNET[1],),
            link=PodLink("lpt0"),
        )
    )
    given = ledger.reserve(NEW, POD, RANGES, now_s=time.monotonic())
    assert given.evicted == (OLD,)

    ledger.release(NEW, now_s=time.monotonic())  # its interface could not be taken away
    ledgers.hold_live(ledger)

    assert ledger.addresses_of(OLD) == (SUBNET[2],)
    assert ledger.addresses_of(NEW) == ()
    again = ledger.reserve(NEW, POD, RANGES, now_s=time.monotonic())
    assert again.evicted == (OLD,), "the pod may ask again"
    ledgers.close()


# Two networks that draw on the same segments.


def given(ledgers: Ledgers, network: str, holder: Holder, name: str, now_s: float) -> str:
    request = CniRequest(
        Verb.ADD,
        NetworkConf(network, "1.0.0", ipam_only=False),
        holder.container_id,
        holder.ifname,
        pod_namespace="default",
        pod_name=name,
    )
    range_sets = ((Range(SUBNET, SUBNET[2], SUBNET[4], SUBNET[1]),),)
    planned = PlannedNetwork(
        network, range_sets, from_segments=True, shares_segments=True, bridge=None, mtu_bytes=1500
    )
    made = ledgers.reserve(ledgers.ledger(network), request, planned, now_s=now_s, seen=None)
    return str(made.leases[0].address.ip)


def test_what_one_network_keeps_for_a_pod_another_gives_last(tmp_path: Path) -> None:
    ledgers = Ledgers(tmp_path / "lib", 30.0, Attachments(tmp_path / "run"))
    assert given(ledgers, "net", OLD, "db-0", 0) == "10.7.0.2"
    ledgers.ledger("net").release(OLD, now_s=1)

    others = [Holder(name * 64, "eth0") for name in "cde"]
    assert given(ledgers, "more", others[0], "x", 2) == "10.7.0.3"
    assert given(ledgers, "net", NEW, "db-0", 3) == "10.7.0.2", "as it was"
    ledgers.ledger("net").release(NEW, now_s=4)
    assert given(ledgers, "more", others[1], "y", 5) == "10.7.0.4"
    assert given(ledgers, "more", others[2], "z", 6) == "10.7.0.2", "there is no other"
    with pytest.raises(ExhaustedError, match="used by others of this node"):
        given(ledgers, "net", NEW, "db-0", 7)

    ledgers.ledger("more").release(others[0], now_s=8)
    assert given(ledgers, "net", NEW, "db-0", 9) == "10.7.0.3", "it is kept for x, and all is used"
    ledgers.close()


def test_what_a_live_pod_has_nobody_is_given_while_its_networks_record_cannot_be_opened(
    tmp_path: Path,
) -> None:
    attachments = Attachments(tmp_path / "run")
    attachments.put(
        Attachment(
            "net",
            OLD,
            Netns("/run/netns/old", 4, 1),
            PodName("default", "db-0"),
            (ip_interface("10.7.0.2/29"),),
            (SUBNET[1],),
            link=PodLink("lpt0"),
        )
    )
    ledgers = Ledgers(tmp_path / "lib", 0.0, attachments)
    (tmp_path / "lib" / "net").mkdir(parents=True)
    (tmp_path / "lib" / "net" / "lock").mkdir()
    with pytest.raises(StorageError):
        ledgers.ledger("net")

    assert given(ledgers, "more", NEW, "x", 0) == "10.7.0.3"
    ledgers.close()


def test_what_a_pod_of_another_network_has_by_now_is_not_given_back(tmp_path: Path) -> None:
    """After a boot the record of a network with a folder of its own may be opened last."""
    before = Ledgers(tmp_path / "lib", 0.0, Attachments(tmp_path / "run"))
    assert given(before, "net", OLD, "db-0", 0) == "10.7.0.2"
    before.close()
    (tmp_path / "lib" / "net").rename(tmp_path / "aside")
    ledgers = Ledgers(tmp_path / "lib", 0.0, Attachments(tmp_path / "run"))
    assert given(ledgers, "more", Holder("c" * 64, "eth0"), "x", 1) == "10.7.0.2"
    (tmp_path / "aside").rename(tmp_path / "lib" / "net")

    assert given(ledgers, "net", OLD, "db-0", 2) == "10.7.0.3", "the same container again"
    ledgers.close()
