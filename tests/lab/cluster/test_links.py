"""Links of a node that change faster than its agent looks."""

from __future__ import annotations

from pathlib import Path

from limpet.lab.world.machine import UPLINK
from limpet.lab.world.wires import batch
from tests.lab.bed import TWO_SITES, a_world, everybody_reaches_everybody
from tests.waiting import wait_until


def test_a_link_that_loses_its_addresses_and_gets_them_back_at_once_is_used_again(
    tmp_path: Path,
) -> None:
    with a_world(TWO_SITES, tmp_path / "world") as world:
        node = world.machine("crane-1")
        everybody_reaches_everybody(world)
        for number in range(40):
            # Between the two its agent has more to do each time.
            busy = [f"link set lo {'down' if each % 2 else 'up'}" for each in range(2 * number)]
            gone = [f"addr del {each} dev {UPLINK}" for each in node.addresses]
            back = [f"addr add {each} dev {UPLINK} nodad" for each in node.addresses]
            batch(node.name, [*gone, *busy, *back])
            wait_until(lambda: node.ask("status")["cluster"]["peers"]["route"] == 1)
