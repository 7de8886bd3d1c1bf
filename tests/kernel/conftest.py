"""Fixtures of the kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel.namespaces import NetnsFactory
from tests.kernel.node_bed import NodeBed


@pytest.fixture
def make_netns() -> Iterator[NetnsFactory]:
    """Makes namespaces that are gone after the test, whatever happens."""
    factory = NetnsFactory()
    yield factory
    factory.close()


@pytest.fixture
def bed(make_netns: NetnsFactory) -> Iterator[NodeBed]:
    """A node with two segments, nothing done to it yet."""
    bed = NodeBed(make_netns)
    yield bed
    bed.close()
