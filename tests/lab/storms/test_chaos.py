"""Whatever happens, in whatever order: when it is over, everything is as it was."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from limpet.lab.topology import load_topology
from tests.effort import effort
from tests.lab.bed import a_world
from tests.lab.storms.chaos import Chaos, until_empty
from tests.lab.storms.faults import FAULTS

STORMS = effort(2, 3)


@pytest.mark.soak
@pytest.mark.parametrize(("topology", "seed"), [("two-sites", 2), ("filtering-switch", 3)])
def test_after_storms_everybody_reaches_everybody_and_nothing_is_left_over(
    topology: str, seed: int, tmp_path: Path
) -> None:
    text = load_topology(topology).text + '\n[agent]\nlog_level = "debug"\n'
    with a_world(text, tmp_path) as world:
        chaos = Chaos(world, Random(seed), FAULTS)
        chaos.check()
        for _ in range(STORMS):
            chaos.storm(5)
            chaos.calm_down()
            chaos.check()

        # What a storm has left to do is done at some time; who runs in a circle never rests.
        until_empty(chaos.unrest, within_s=60)
