"""Each parser is a target, and no sample or mutation of one is a fault."""

from __future__ import annotations

import random

import pytest
import structlog

from tests.fuzz.growth import MOST_BYTES, MOST_BYTES_OF_ALL
from tests.fuzz.mutation import mutate
from tests.fuzz.parsers import EXEMPT, entered, is_exempt, parsers
from tests.fuzz.proportion import check_cost, check_cpu
from tests.fuzz.samples import as_line, grown_of, kept_names, samples_of
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

_MUTATIONS = 60
"""Of each target, without any guide: `make fuzz` looks for more."""


@pytest.fixture(params=TARGETS.values(), ids=lambda target: target.name)
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


def test_every_function_that_reads_what_others_give_is_entered_by_a_target() -> None:
    with structlog.testing.capture_logs():
        found = entered(TARGETS.values())

    missed = sorted(name for name in parsers() - found if not is_exempt(name))

    assert not missed, "no target, and no reason in EXEMPT:\n" + "\n".join(missed)


def test_what_needs_no_target_is_there_and_has_none() -> None:
    known = parsers()

    gone = [name for name in EXEMPT if not any(each.startswith(name) for each in known)]

    assert not gone, f"in EXEMPT, and nowhere else: {gone}"


def test_kept_samples_are_of_targets_that_there_are() -> None:
    assert kept_names() <= TARGETS.keys()


def test_what_is_kept_of_searches_is_little() -> None:
    sizes = {
        name: sum(len(as_line(name, data)) + 1 for data in grown_of(target))
        for name, target in TARGETS.items()
    }

    assert {name: size for name, size in sizes.items() if size > MOST_BYTES} == {}
    assert 0 < sum(sizes.values()) <= MOST_BYTES_OF_ALL


def test_a_target_takes_one_of_its_own_samples(target: Target) -> None:
    with structlog.testing.capture_logs():
        taken = [target.attempt(each) for each in target.seeds()]

    assert any(taken)


def test_samples_cost_in_proportion(target: Target) -> None:
    with structlog.testing.capture_logs():
        for each in samples_of(target):
            check_cost(target, each)


def test_mutations_are_taken_or_refused_in_the_parsers_words(
    target: Target, chance: random.Random
) -> None:
    samples = samples_of(target)
    with structlog.testing.capture_logs():
        for _ in range(_MUTATIONS):
            data = mutate(chance.choice(samples), target.shape, chance, target.most_bytes)
            try:
                check_cpu(target, data)
            except Exception as error:
                raise AssertionError(f"{target.name} {data!r}: {error!r}") from error
