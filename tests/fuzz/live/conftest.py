"""What is thrown is bounded by processor time, which a busy machine gives late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.effort import effort

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(pytest.mark.timeout(effort(300, 0)))
