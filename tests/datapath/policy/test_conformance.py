"""Every row of the conformance table holds for real packets between pods of two nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.beds.namespaces import NetnsFactory
from tests.beds.policies.policy_matrix import PolicyMatrix
from tests.datapath.policy.conformance import ROWS
from tests.datapath.policy.conformance.asks import Row
from tests.datapath.policy.conformance.covered import COVERED


@pytest.fixture(scope="module")
def matrix() -> Iterator[PolicyMatrix]:
    make = NetnsFactory()
    try:
        made = PolicyMatrix(make)
        yield made
        made.close()
    finally:
        make.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_passes_between_pods_of_two_nodes_is_what_is_written(
    matrix: PolicyMatrix, row: Row
) -> None:
    for moment in row.moments:
        matrix.enforce(moment.now)
        for ask in moment.asks:
            matrix.check(ask.is_open, ask.protocol, ask.port, ask.sources, ask.targets)


def test_no_two_rows_have_one_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_each_case_of_the_suite_of_kubernetes_has_its_rows() -> None:
    names = {row.name for row in ROWS}
    assert {asked: set(rows) - names for asked, rows in COVERED.items() if set(rows) - names} == {}
    assert all(COVERED.values())
