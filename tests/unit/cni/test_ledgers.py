"""An address is its live pod's, whatever becomes of the record."""

from __future__ import annotations

import time
from ipaddress import ip_interface, ip_network
from pathlib import Path

from limpet.cni.ledgers import Ledgers
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
