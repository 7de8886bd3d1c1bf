"""The records of live attachments."""

from __future__ import annotations

import os
import time
from pathlib import Path

from limpet.datapath.node.pod.attachment import Attachment, Netns, PodLink, PodName
from limpet.datapath.node.pod.attachments import Attachments
from limpet.ipam.leases import Holder

NINE_HOURS_NS = 9 * 3600 * 10**9


def attachment(name: str) -> Attachment:
    return Attachment(
        "net",
        Holder(name, "eth0"),
        Netns(f"/run/netns/{name}", 1, 2),
        PodName("", name),
        (),
        (),
        link=PodLink(f"lim{name}"),
    )


def names(attachments: Attachments) -> list[str]:
    return [each.pod.name for each in attachments]


def test_their_order_is_that_of_making_also_where_the_clock_was_set_back(tmp_path: Path) -> None:
    """Of two pods that ask for one port of the host the later one has it."""
    Attachments(tmp_path).put(attachment("two"))
    ahead_ns = time.time_ns() + NINE_HOURS_NS
    os.utime(tmp_path / "limtwo.json", ns=(ahead_ns, ahead_ns))

    attachments = Attachments(tmp_path)
    for name in ("one", "three"):
        attachments.put(attachment(name))

    assert names(attachments) == ["two", "one", "three"]
    assert names(Attachments(tmp_path)) == ["two", "one", "three"]
