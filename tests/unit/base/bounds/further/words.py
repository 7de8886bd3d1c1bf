"""Of words and names of others, and of how often lines and refusals come."""

from __future__ import annotations

import os
import tempfile

from limpet.base.bounds import members, neighbours, servers, signers, words
from limpet.base.process.log import complain, in_bounds
from limpet.base.process.log_limits import LogLimits
from limpet.base.text.names import label_problem
from limpet.cloud.workloads.unread import UnreadObjects
from limpet.cluster.datagrams.peer_datagram import DatagramError
from limpet.cluster.datagrams.peer_socket import Rates
from limpet.cluster.documents import Sealed
from limpet.cluster.exchange.pod_messages import (
    PodAsk,
    PodsTold,
    ToldPod,
    encode,
    parse_ask,
    parse_told,
    told,
)
from limpet.cluster.kinds import POLICY, fields
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.cluster.seal import _document
from limpet.kubernetes.kinds.objects import Viewed
from limpet.kubernetes.reflector_state import ObjectChanges
from limpet.kubernetes.watch_event import Unreadable
from tests.unit.base.bounds.asked.http import _source
from tests.unit.base.bounds.probes import is_remembered, probe

_NONCE = bytes(8)


@probe(words.NAME)
def _names_asked_for(amount: int) -> bool:
    name = "x" * amount
    taken = {_is_asked(PodAsk(_NONCE, name, "web")), _is_asked(PodAsk(_NONCE, "shop", name))}
    assert len(taken) == 1
    return taken.pop()


def _is_asked(ask: PodAsk) -> bool:
    try:
        parse_ask(encode(ask))
    except DatagramError:
        return False
    return True


@probe(members.TOLD_POD_ADDRESSES)
def _addresses_told(amount: int) -> bool:
    said = PodsTold(_NONCE, (ToldPod("shop", "web", ("10.0.0.1",) * amount),))
    try:
        parse_told(encode(said))
    except DatagramError:
        return False
    return True


@probe(neighbours.FOUND_PODS)
def _pods_told(amount: int) -> bool:
    return len(told(_NONCE, [ToldPod("shop", "web", ())] * amount).pods) == amount


@probe(words.NAME)
def _word_of_a_document(amount: int) -> bool:
    try:
        return fields.word("x" * amount) == "x" * amount
    except ValueError:
        return False


@probe(words.NAME)
def _domain_of_a_label(amount: int) -> bool:
    return label_problem("x" * amount + "/site", "") == ""


@probe(words.NAME)
def _names_of_what_cannot_be_read(amount: int) -> bool:
    unread, name = UnreadObjects(), "x" * amount
    found = [Unreadable(name, "bad"), Unreadable("web", "bad", namespace=name)]
    changes: ObjectChanges[Viewed] = ObjectChanges(unreadable=found)
    unread.hear("Service", changes)
    taken = {bool(unread.cause("Service", key)) for key in (("", name), (name, "web"))}
    assert len(taken) == 1
    return taken.pop()


@probe(servers.UNREAD_CAUSE)
def _why_nobody_can_use_it(amount: int) -> bool:
    source = _source()
    source._note("grant", "n", "x" * amount)
    return list(source._unusable.values()) == ["x" * amount]


@probe(signers.MAX_VERSION)
def _version(amount: int) -> bool:
    """Of any kind, whatever bound its own number has."""
    try:
        return (
            _document(POLICY, Sealed(POLICY.name, b"", b""), SignedPolicy("x", amount)).version > 0
        )
    except ValueError:
        return False


@probe(words.LOG_VALUE)
def _complaint(amount: int) -> bool:
    """On the standard error output itself."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            complain("x" * amount)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read() == b"x" * amount + b"\n"


@probe(words.LOG_VALUE)
def _large_number(amount: int) -> bool:
    number = (1 << 4 * (amount - len("0x"))) - 1
    said = in_bounds(None, "", {"event": "it", "value": number})
    return said == {"event": "it", "value": hex(number)}


@probe(words.LOG_KINDS)
def _kinds_of_lines(amount: int) -> bool:
    return is_remembered(amount, LogLimits()._lines)


@probe(words.LOG_KINDS)
def _kinds_left_out(amount: int) -> bool:
    limits = LogLimits()
    for kind in range(amount):
        for _ in range(words.LOG_REFUSALS.most + 1):
            limits.take(f"{kind}", 0.0, by_others=True)
    return len(limits._left_out) == amount


def _used_up() -> Rates:
    rates = Rates()
    assert all(
        rates.refused.take(f"{each}", 0.0) for each in range(neighbours.REFUSALS_AT_ONCE.most)
    )
    return rates


@probe(neighbours.REFUSALS_PER_S)
def _refusals(amount: int) -> bool:
    """One after the other, so that none is lost for there being as many already."""
    rates = _used_up().refused
    return all(rates.take(f"later {n}", 1.0001 * (n + 1) / amount) for n in range(amount))


@probe(neighbours.REFUSALS_OF_ONE_PER_MINUTE)
def _refusals_of_one(amount: int) -> bool:
    rates = Rates().refused
    assert rates.take("uid", 0.0)
    return all(rates.take("uid", 60.001 * (n + 1) / amount) for n in range(amount))
