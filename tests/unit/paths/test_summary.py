"""What is said of a peer that is not reached by a way of its own."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface

from limpet.base.addresses import UnderlayLink
from limpet.paths.ladder.candidates import CandidateFacts
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.summary import BLOCKED, why_indirect

ETH0 = UnderlayLink("eth0", 2, "02:00:00:00:00:01", 1500, (ip_interface("10.1.0.2/24"),))


def test_relays_that_do_not_answer_over_udp_may_be_off_as_well() -> None:
    ladder = Ladder()
    facts = CandidateFacts((ip_address("203.0.113.9"),), 7471, tunnel=True)
    ladder.settle(facts, (ETH0,), at_s=0, urgent=True)

    found = why_indirect(ladder, BLOCKED)

    assert found is not None
    assert (
        found.why == "no relay answers over UDP: it does not get out of this site, or they are off"
    )
    assert any("limpet doctor` on them" in each for each in found.mend)
