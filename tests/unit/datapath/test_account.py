"""What the loop counts of its rounds."""

from __future__ import annotations

import pytest

from limpet.datapath.loop import Account


def test_totals_add_up() -> None:
    account = Account()

    account.add(3, ["refused"], 0.02)
    account.add(0, ["refused"], 0.005)

    assert (account.rounds, account.changes, account.failed) == (2, 3, 2)
    assert account.took_s == pytest.approx(0.025)
    assert (account.last_changes, account.failures, account.retries) == (0, ["refused"], 2)

    account.add(1, [], 0.001)

    assert (account.failures, account.retries) == ([], 0)
