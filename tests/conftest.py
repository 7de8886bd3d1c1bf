"""Fixtures that several folders use."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from limpet.lab.launch import launching_with
from limpet.lab.world.node import LabNode
from tests.answers import Judging
from tests.beds.namespaces import NetnsFactory
from tests.beds.node_bed import NodeBed
from tests.effort import WHOLE, examples
from tests.last_words import last_words
from tests.order import BothEnds, longest_first
from tests.warm.launcher import Warmed

# How long anything takes says nothing here: the machine may be busy with other things.
settings.register_profile(
    "untimed",
    deadline=None,
    max_examples=examples(100),
    derandomize=not WHOLE,
    suppress_health_check=[HealthCheck.too_slow],
    parent=settings.default,
)
settings.load_profile("untimed")

# A shell starts what it runs in the background with SIGINT ignored, and that is inherited: the
# commands that tests interrupt would never notice.
signal.signal(signal.SIGINT, signal.default_int_handler)

SEGMENTS = ["10.244.7.0/24", "fd00:7::/64"]
_numbers = itertools.count()

NodeFactory = Callable[..., LabNode]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(getattr(item, "function", None), "is_hypothesis_test", False):
            item.add_marker("soak")
    longest_first(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BothEnds | None:
    """Of two processes, as for clusters, each has to begin with what takes longest."""
    many = config.getvalue("dist") == "loadfile" and config.getvalue("numprocesses") > 2
    return BothEnds(config, log) if many else None


def pytest_collection_finish() -> None:
    """What was loaded stays: looking for garbage in it takes a seventh of a second, each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails in a world tells what its agents said last."""
    report = yield
    if report.failed:
        report.sections += last_words(getattr(item, "funcargs", {}).values())
    return report


@pytest.fixture(scope="session", autouse=True)
def _warmed() -> Iterator[None]:
    """Limpet's programs are forked from interpreters that have loaded them, not started by exec;
    what they answer in JSON is held to its schema."""
    warmed = Warmed()
    with launching_with(Judging(warmed)):
        yield
    warmed.close()


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """What a file of tests leaves unclosed fails that file, not the one that meets the garbage.

    What it leaves for others (trees of the whole source that are parsed once) is looked at once,
    too: after them each file took up to two seconds more.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def log_as_before() -> Iterator[None]:
    """A command that runs in this process may have told the log to be silent."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


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


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[NodeFactory]:
    """Makes nodes in namespaces `lt<pid>-<n>`; whatever happens, they are removed."""
    nodes: list[LabNode] = []

    def make(**settings: Any) -> LabNode:
        number = next(_numbers)
        node = LabNode(f"lt{os.getpid()}-{number}", tmp_path / f"node{number}", **settings)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.power_off()


@pytest.fixture
def chance() -> random.Random:
    """Another one each time; what fails tells the seed, and `LIMPET_TEST_SEED` gives it again."""
    seed = os.environ.get("LIMPET_TEST_SEED") or str(int.from_bytes(os.urandom(4), "big"))
    print(f"LIMPET_TEST_SEED={seed}")  # noqa: T201 - pytest shows it when the test fails
    return random.Random(int(seed))


@pytest.fixture
def node(make_node: NodeFactory) -> LabNode:
    """A node with a segment of each family and its agent running."""
    node = make_node(segments=SEGMENTS, log_level="debug")
    node.start_agent()
    return node
