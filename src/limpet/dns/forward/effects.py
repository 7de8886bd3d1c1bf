"""What is to be done for questions that are upstreams' to answer. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from limpet.dns.wire import DnsAnswer

W = TypeVar("W", bound=Hashable)


@dataclass(frozen=True, slots=True)
class AskUpstream:
    """Ask the upstream of this number; what comes back is `heard` under the attempt's."""

    attempt: int
    upstream: int
    message: bytes
    by_tcp: bool = False


@dataclass(frozen=True, slots=True)
class CloseAttempt:
    """The attempt is over."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Deliver(Generic[W]):
    """What somebody has waited for. `ttl_s`: in place of the records' own, which are older by
    `age_s`."""

    waiter: W
    answer: DnsAnswer
    age_s: int = 0
    ttl_s: int | None = None


Effect = AskUpstream | CloseAttempt | Deliver[W]
