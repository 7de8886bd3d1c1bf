"""24 hours of edge nodes behind NATs, compressed: when they are over, all is as it was."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.effort import effort
from tests.lab.bed import a_world
from tests.lab.rungs import CLIMBS_WITHIN_S, WITHIN_S, tell
from tests.lab.storms.chaos import Chaos
from tests.lab.storms.day import check_across, descriptors, nat_kinds
from tests.lab.storms.nat_faults import DAY

TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24"]
nodes = { hub = 1 }
relays = ["hub"]
[site.harbour]
lan = ["192.168.1.0/24"]
nat = "cone"
nodes = { crane-1 = 1, crane-2 = 1 }
[site.quarry]
lan = ["192.168.1.0/24"]
nat = "port-restricted"
nodes = { digger-1 = 1 }
[site.mast]
lan = ["192.168.30.0/24"]
nat = "symmetric"
nodes = { radio-1 = 1 }
[site.elsewhere]
lan = ["198.51.100.0/24"]
nodes = { buoy = 0 }
relays = ["buoy"]
[agent]
log_level = "debug"
"""
SEED, FAULTS = 5, effort(9, 60)


@pytest.mark.soak
def test_after_a_day_of_faults_all_is_as_it_was_in_the_morning(tmp_path: Path) -> None:
    with a_world(TOPOLOGY, tmp_path) as world:
        day = Chaos(world, Random(SEED), DAY, tell)
        day.spare_descriptors = descriptors(world)
        day.pauses_s = (0, 0.1, 0.5)
        day.check(within_s=WITHIN_S)
        check_across(day, within_s=WITHIN_S)
        kinds = nat_kinds(world)

        day.storm(FAULTS)
        day.calm_down()

        tell(f"all reached all after {day.check(within_s=WITHIN_S):.1f} s")
        check_across(day, within_s=CLIMBS_WITHIN_S)
        assert nat_kinds(world) == kinds
