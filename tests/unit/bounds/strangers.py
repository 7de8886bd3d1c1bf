"""Probes of what strangers send."""

from __future__ import annotations

import tempfile

from limpet.base.acceptor.admission import Admission
from limpet.base.bounds import strangers
from limpet.base.errors import LimpetError
from limpet.cli.options import given_token
from limpet.controller.api.connections import ELSEWHERE, PATIENCE
from tests.unit.bounds.probes import probe


def _api() -> Admission[int]:
    return Admission(ELSEWHERE, ELSEWHERE, PATIENCE)


@probe(strangers.API_WAITING)
def _(amount: int) -> bool:
    api = _api()
    return all(api.arrive(each, bytes([each & 255]), 0.0) is None for each in range(amount))


@probe(strangers.API_WAITING_OF_ONE)
def _(amount: int) -> bool:
    api = _api()
    return all(api.arrive(each, b"one", 0.0) is None for each in range(amount))


def _are_let_in(amount: int, sources: int) -> bool:
    api = _api()
    for each in range(amount):
        api.arrive(each, bytes([each % sources]), 0.0)
        api.has_sent(each)
    return all(api.take(0.0) is not None for _ in range(amount))


@probe(strangers.API_INSIDE)
def _(amount: int) -> bool:
    return _are_let_in(amount, sources=200)


@probe(strangers.API_INSIDE_OF_ONE)
def _(amount: int) -> bool:
    return _are_let_in(amount, sources=1)


def _let_in(*, ask: bool = False, others: int = 0) -> Admission[int]:
    api = _api()
    for each in range(1 + others):
        api.arrive(each, b"one", 0.0)
        api.has_sent(each)
    while (one := api.take(0.0)) is not None:
        if ask:
            api.has_asked(one)
    return api


def _stay(api: Admission[int], seconds: int) -> bool:
    """All of those inside are still there a moment before so many seconds have passed."""
    return not api.take_overdue(seconds - 0.001)


@probe(strangers.API_FIRST_S)
def _(amount: int) -> bool:
    silent = _api()
    silent.arrive(0, b"one", 0.0)
    return _stay(silent, amount) and _stay(_let_in(), amount)


@probe(strangers.API_TURN_S)
def _(amount: int) -> bool:
    api = _api()
    api.arrive(0, b"one", 0.0)
    api.has_sent(0)
    return _stay(api, amount)


@probe(strangers.API_HURRIED_S)
def _(amount: int) -> bool:
    return _stay(_let_in(others=strangers.API_INSIDE_OF_ONE.most), amount)


@probe(strangers.API_LONGEST_S)
def _(amount: int) -> bool:
    return _stay(_let_in(ask=True), amount)


@probe(strangers.JOIN_TOKEN)
def _(amount: int) -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x" * amount)
        file.flush()
        try:
            return len(given_token("join", "", file.name)) == amount
        except LimpetError:
            return False
