"""Probes of what strangers send."""

from __future__ import annotations

import asyncio
import tempfile
from ipaddress import IPv6Address

from limpet.base.acceptor.admission import Admission
from limpet.base.bounds import strangers
from limpet.base.bounds.bound import Bound
from limpet.base.errors import LimpetError
from limpet.base.rate_limit import SourceRates
from limpet.cli.netcheck.tcp import head_of
from limpet.cli.options import given_token
from limpet.cluster.datagrams.reflection import AddressReflector, encode_question
from limpet.controller.api.connections import ELSEWHERE, KNOWN, MONITORS, PATIENCE
from limpet.relay.server.tls_server import handshake_rates
from tests.unit.base.bounds.probes import is_remembered, probe


def _api() -> Admission[int]:
    return Admission(ELSEWHERE, KNOWN, PATIENCE)


@probe(strangers.REFLECTIONS)
def _(amount: int) -> bool:
    rates = AddressReflector().rates
    return all(rates.take(each // 100, 0.0) for each in range(amount))


@probe(strangers.REFLECTIONS_PER_S)
def _(amount: int) -> bool:
    rates = AddressReflector().rates
    assert all(rates.take(each // 100, 0.0) for each in range(strangers.REFLECTIONS.most))
    return all(rates.take(1000 + each, 1.0001) for each in range(amount))


def _reflect(reflector: AddressReflector, host: int, now_s: float) -> bool:
    """Whether a question from one /64 is answered."""
    source = (IPv6Address((0x20010DB8 << 96) + host), 7471)
    return reflector.answer(encode_question(bytes(16)), source, now_s) is not None


@probe(strangers.REFLECTIONS_OF_ONE)
def _(amount: int) -> bool:
    reflector = AddressReflector()
    return all(_reflect(reflector, each, 0.0) for each in range(amount))


@probe(strangers.REFLECTIONS_OF_ONE_PER_S)
def _(amount: int) -> bool:
    reflector = AddressReflector()
    assert all(_reflect(reflector, each, 0.0) for each in range(strangers.REFLECTIONS_OF_ONE.most))
    return all(_reflect(reflector, each, 1.0001) for each in range(amount))


@probe(strangers.NETCHECK_ANSWER)
def _(amount: int) -> bool:
    async def read() -> int:
        reader = asyncio.StreamReader()
        reader.feed_data(bytes(amount))
        reader.feed_eof()
        return len(await head_of(reader))

    return asyncio.run(read()) == amount


@probe(strangers.API_WAITING)
def _(amount: int) -> bool:
    api = _api()
    return all(api.arrive(each, bytes([each & 255]), 0.0) is None for each in range(amount))


@probe(strangers.API_WAITING_OF_ONE)
def _(amount: int) -> bool:
    api = _api()
    return all(api.arrive(each, b"one", 0.0) is None for each in range(amount))


def _known(sources: int) -> Admission[int]:
    """Nodes have come from all of them lately."""
    api = _api()
    for source in range(sources):
        api.know(bytes([source]))
    return api


@probe(strangers.API_WAITING)
def _(amount: int) -> bool:
    api = _known(256)
    return all(api.arrive(each, bytes([each & 255]), 0.0) is None for each in range(amount))


@probe(strangers.API_WAITING_OF_ONE)
def _(amount: int) -> bool:
    api = _known(1)
    return all(api.arrive(each, bytes(1), 0.0) is None for each in range(amount))


def _are_let_in(amount: int, sources: int, *, known: bool = False) -> bool:
    api = _known(sources) if known else _api()
    for each in range(amount):
        api.arrive(each, bytes([each % sources]), 0.0)
        api.has_sent(each)
    return all(api.take(0.0) is not None for _ in range(amount))


for _known_too in (False, True):

    @probe(strangers.API_INSIDE)
    def _(amount: int, known: bool = _known_too) -> bool:
        return _are_let_in(amount, sources=200, known=known)

    @probe(strangers.API_INSIDE_OF_ONE)
    def _(amount: int, known: bool = _known_too) -> bool:
        return _are_let_in(amount, sources=1, known=known)


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


def _monitored() -> Admission[int]:
    return Admission(MONITORS, MONITORS, PATIENCE)


def _probe_monitored(at_once: Bound, per_s: Bound, *, sources: int) -> None:
    @probe(at_once)
    def _(amount: int) -> bool:
        found = _have_turns(amount, 0.0, sources=sources, known=False, before=_monitored())
        return found is not None

    @probe(per_s)
    def _(amount: int) -> bool:
        used_up = _have_turns(at_once.most, 0.0, sources=sources, known=False, before=_monitored())
        again = _have_turns(amount, 1.0001, sources=sources, known=False, before=used_up)
        return again is not None


def _have_turns(
    amount: int, now_s: float, *, sources: int, known: bool, before: Admission[int] | None = None
) -> Admission[int] | None:
    """So many begin a handshake one after the other; None: one of them has to wait."""
    api = before or _api()
    for each in range(amount):
        source = (each % sources).to_bytes(2)
        if known:
            api.know(source)
        api.arrive(each, source, now_s)
        api.has_sent(each)
        if api.take(now_s) is None:
            return None
        api.leave(each)
    return api


def _probe_handshakes(at_once: Bound, per_s: Bound, *, sources: int, known: bool) -> None:
    @probe(at_once)
    def _(amount: int) -> bool:
        return _have_turns(amount, 0.0, sources=sources, known=known) is not None

    @probe(per_s)
    def _(amount: int) -> bool:
        used_up = _have_turns(at_once.most, 0.0, sources=sources, known=known)
        again = _have_turns(amount, 1.0001, sources=sources, known=known, before=used_up)
        return again is not None


_probe_handshakes(
    strangers.API_HANDSHAKES, strangers.API_HANDSHAKES_PER_S, sources=1000, known=False
)
_probe_handshakes(
    strangers.API_HANDSHAKES_OF_ONE, strangers.API_HANDSHAKES_OF_ONE_PER_S, sources=1, known=False
)
_probe_handshakes(
    strangers.API_KNOWN_HANDSHAKES, strangers.API_KNOWN_HANDSHAKES_PER_S, sources=1000, known=True
)
_probe_handshakes(
    strangers.API_KNOWN_HANDSHAKES_OF_ONE,
    strangers.API_KNOWN_HANDSHAKES_OF_ONE_PER_S,
    sources=1,
    known=True,
)


_probe_monitored(strangers.FIGURES_ASKED, strangers.FIGURES_ASKED_PER_S, sources=1000)
_probe_monitored(strangers.FIGURES_ASKED_OF_ONE, strangers.FIGURES_ASKED_OF_ONE_PER_S, sources=1)


def _probe_relay(at_once: Bound, per_s: Bound, *, sources: int) -> None:
    @probe(at_once)
    def _(amount: int) -> bool:
        rates = handshake_rates()
        return all(rates.take(each % sources, 0.0) for each in range(amount))

    @probe(per_s)
    def _(amount: int) -> bool:
        rates = handshake_rates()
        assert all(rates.take(each % sources, 0.0) for each in range(at_once.most))
        return all(rates.take(each % sources, 1.0001) for each in range(amount))


_probe_relay(strangers.RELAY_HANDSHAKES, strangers.RELAY_HANDSHAKES_PER_S, sources=1000)
_probe_relay(strangers.RELAY_HANDSHAKES_OF_ONE, strangers.RELAY_HANDSHAKES_OF_ONE_PER_S, sources=1)


# Of how many it is counted how often they come.


@probe(strangers.API_SOURCES)
def _(amount: int) -> bool:
    """Those that nodes have come from, and all that have begun a handshake."""
    api, hall = _api(), _api()._halls[0]
    for number in range(amount):
        api.know(number.to_bytes(4))
    kept = {bytes(4) in api._known, is_remembered(amount, hall._rate_of_one)}
    assert len(kept) == 1
    return kept.pop()


def _are_kept(amount: int, rates: SourceRates) -> bool:
    known = [f"known {number}" for number in range(amount)]
    for each in known:
        rates.know(each)
    kept = {rates.knows(known[0]), is_remembered(amount, rates._each)}
    assert len(kept) == 1
    return kept.pop()


@probe(strangers.RELAY_SOURCES)
def _(amount: int) -> bool:
    return _are_kept(amount, handshake_rates())


@probe(strangers.REFLECTED_SOURCES)
def _(amount: int) -> bool:
    return _are_kept(amount, AddressReflector().rates)
