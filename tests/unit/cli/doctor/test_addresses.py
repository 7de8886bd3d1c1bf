"""What is made of segments."""

from __future__ import annotations

from typing import Any

from limpet.cli.doctor.findings import Level
from limpet.cli.doctor.installed.records import examine_segments
from tests.unit.cli.doctor.targets import target


def levels(findings: Any) -> list[Level]:
    return [finding.level for finding in findings]


def test_a_segment_outside_of_the_cluster_is_a_warning() -> None:
    inside = examine_segments(target(cluster_cidrs=["10.244.0.0/16", "fd00::/48"]))
    outside = examine_segments(target(cluster_cidrs=["10.9.0.0/16"]))

    assert levels(inside) == [Level.OK]
    assert levels(outside) == [Level.OK, Level.WARN]


def test_no_segment_is_an_error() -> None:
    assert levels(examine_segments(target(segments=[]))) == [Level.ERROR]
