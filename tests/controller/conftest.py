"""Controllers that end with the test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controller.machines import Controller

MakeController = Callable[..., Controller]


@pytest.fixture
def make_controller(tmp_path: Path) -> Iterator[MakeController]:
    """Makes controllers, not started; whatever happens, they are stopped."""
    made: list[Controller] = []
    numbers = itertools.count()

    def make(**settings: Any) -> Controller:
        made.append(Controller(tmp_path / f"c{next(numbers)}", **settings))
        return made[-1]

    yield make
    for controller in made:
        controller.stop()


@pytest.fixture
def controller(make_controller: MakeController) -> Controller:
    return make_controller().start()
