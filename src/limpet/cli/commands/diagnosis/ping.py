"""`limpet ping`: by which ways a node answers, and how fast, again and again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from limpet.agent.client import ask
from limpet.agent.settings import load_settings
from limpet.agent.status.ping import PingAnswer, PingWay
from limpet.cli.answers import Pinged, PingSummary
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format
from limpet.cli.output import Output, put, put_document, put_table, say
from limpet.cluster.topology.transports import TRANSPORTS

_WHAT = "A node, a pod of any node, or an address; pod:NAME or node:NAME where it could be both."
_FEW = 10
"""Rounds where none is said, and something waits for the end."""
_PACKET = "packet"


@on_node
def ping(
    target: Annotated[str, typer.Argument(metavar="NODE|POD|IP", help=_WHAT)],
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-c", min=1, help="How many rounds to send (default: until Ctrl-C)."
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option("--interval", "-i", min=0.05, help="Seconds from one round to the next."),
    ] = 1.0,
    until_direct: Annotated[
        bool,
        typer.Option(
            "--until-direct", help="End as soon as the two nodes reach each other without a relay."
        ),
    ] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Ask a node by every way there is, and send a packet as pods do; exit code 1 without answer,
    or when --until-direct has not come about."""
    if count is None and (until_direct or output.is_document):
        count = _FEW
    agent = load_settings(config).folders.socket
    rounds: list[PingAnswer] = []
    tally = Tally()
    try:
        for answer in _rounds(agent, target, count, interval):
            tally.add(answer)  # first: who sees its line, and interrupts, has it counted
            if output.is_document:
                rounds.append(answer)
            else:
                put(round_line(tally.rounds, answer))
            if until_direct and is_direct(answer):
                break
    except KeyboardInterrupt:
        pass
    if not tally.rounds:
        raise typer.Exit(1)
    told = tally.told(target, rounds)
    if output.is_document:
        put_document(told, output)
    else:
        put("")
        put_table([summary_row(each) for each in told.summary])
        for words in conclusions(told, until_direct=until_direct):
            say(words)
    if not told.answered or (until_direct and not told.direct):
        raise typer.Exit(1)


def _rounds(agent: Path, target: str, count: int | None, interval_s: float) -> Iterator[PingAnswer]:
    """Names are looked up once: other nodes may have to be asked."""
    number, due_s = 0, time.monotonic()
    asked: dict[str, Any] = {"target": target}
    while count is None or number < count:
        time.sleep(max(0.0, due_s - time.monotonic()))
        due_s = time.monotonic() + interval_s
        answer = ask(agent, "ping", PingAnswer, **asked)
        yield answer
        found = {"uid": answer.uid, "pod": answer.pod, "addresses": answer.addresses}
        asked = {"target": target, **found}
        number += 1


def is_direct(answer: PingAnswer) -> bool:
    """The pair's packets need no relay, and one of the ways that they stand on has answered."""
    heard = any(each.in_use and each.rtt_ms is not None for each in answer.ways)
    return answer.rung in TRANSPORTS and not _is_relayed(answer.rung) and heard


def _is_relayed(rung: str) -> bool:
    row = TRANSPORTS.get(rung)
    return row is not None and row.relayed


class Tally:
    """What the rounds come to so far."""

    def __init__(self) -> None:
        self.rounds = 0
        self._trips: dict[tuple[str, str, int], list[float | None]] = {}
        """By rung, relay and IP version; of each round the fastest answer."""
        self._in_use: set[tuple[str, str, int]] = set()
        self._last: PingAnswer | None = None

    def add(self, answer: PingAnswer) -> None:
        """One more round."""
        self.rounds += 1
        self._last = answer
        self._in_use = {_key(each) for each in answer.ways if each.in_use}
        for key, ways in _by_key(answer.ways).items():
            self._trips.setdefault(key, []).append(_fastest(ways))
        for packet in answer.packets:
            key = (_PACKET, packet.address, 6 if ":" in packet.address else 4)
            self._trips.setdefault(key, []).append(packet.rtt_ms)

    def told(self, target: str, rounds: list[PingAnswer]) -> Pinged:
        """`rounds`: those that are told one by one."""
        last = self._last
        assert last is not None
        summary = [self._summary(key, trips) for key, trips in self._trips.items()]
        packets = any(each.answered for each in summary if each.rung == _PACKET)
        probes = any(each.answered for each in summary if each.rung != _PACKET)
        return Pinged(
            target=target,
            node=last.node,
            pod=last.pod,
            addresses=last.addresses,
            rung=last.rung,
            direct=is_direct(last),
            # A pod is reached when packets reach it; its node's agent may not run, or answer alone.
            answered=packets or (probes and not last.pod),
            summary=summary,
            why=last.why,
            rounds=rounds,
        )

    def _summary(self, key: tuple[str, str, int], trips: list[float | None]) -> PingSummary:
        rung, by, version = key
        heard = [each for each in trips if each is not None]
        return PingSummary(
            rung=rung,
            by=by,
            version=version,
            in_use=key in self._in_use,
            sent=len(trips),
            answered=len(heard),
            lost_percent=round(100 * (1 - len(heard) / len(trips)), 1),
            least_ms=min(heard, default=None),
            mean_ms=round(sum(heard) / len(heard), 3) if heard else None,
            most_ms=max(heard, default=None),
        )


def _key(way: PingWay) -> tuple[str, str, int]:
    return way.rung, way.relay, way.version


def _by_key(ways: Iterable[PingWay]) -> dict[tuple[str, str, int], list[PingWay]]:
    found: dict[tuple[str, str, int], list[PingWay]] = {}
    for each in ways:
        found.setdefault(_key(each), []).append(each)
    return found


def _fastest(ways: Iterable[PingWay]) -> float | None:
    return min((each.rtt_ms for each in ways if each.rtt_ms is not None), default=None)


def round_line(number: int, answer: PingAnswer) -> str:
    """One round, for a person: what has answered, then what has not; `*` marks the ways in use."""
    heard, silent = [], []
    groups = _by_key(answer.ways)
    versions = {version for _, _, version in groups}
    for (rung, relay, version), ways in groups.items():
        trip_ms = _fastest(ways)
        way = next((each for each in ways if each.rtt_ms == trip_ms), ways[0])
        by = f" {relay}" if relay else f" {way.address}"
        words = f"{rung}{by}" + (f" (IPv{version})" if relay and len(versions) > 1 else "")
        mark = " *" if any(each.in_use for each in ways) else ""
        if trip_ms is None:
            silent.append(f"{words}{mark}")
        else:
            heard.append(f"{words} {trip_ms:.2f} ms{mark}")
    for packet in answer.packets:
        if packet.rtt_ms is not None:
            heard.append(f"packet to {packet.address} {packet.rtt_ms:.2f} ms")
        else:
            why = f" ({packet.problem})" if packet.problem else ""
            silent.append(f"packet to {packet.address}{why}")
    who = answer.pod or answer.node or answer.addresses[0]
    on = f" on {answer.node}" if answer.pod and answer.node else ""
    parts = [", ".join(heard)] if heard else []
    parts += [f"no answer: {', '.join(silent)}"] if silent else []
    return f"{number}  {who}{on}: {'; '.join(parts)}"


def summary_row(each: PingSummary) -> dict[str, Any]:
    """One way, for a person."""
    trips = (each.least_ms, each.mean_ms, each.most_ms)
    return {
        "by": f"{each.rung} {each.by}".rstrip(),
        "ip": f"IPv{each.version}",
        "in_use": "yes" if each.in_use else "",
        "answers": f"{each.answered}/{each.sent}",
        "loss": f"{each.lost_percent:g} %",
        "rtt": "/".join(f"{trip:.2f}" for trip in trips if trip is not None)
        + (" ms" if each.answered else ""),
    }


def conclusions(told: Pinged, *, until_direct: bool) -> Iterator[str]:
    """What a person should know beside the figures."""
    if told.why:
        yield f"no way was probed: {told.why}"
    probes = [each for each in told.summary if each.rung != _PACKET]
    packets = [each for each in told.summary if each.rung == _PACKET]
    if told.pod and not told.answered and any(each.answered for each in probes):
        yield (
            f"{told.node} answers, and {told.pod} does not: a policy, the pod itself, or the "
            "way of packets that are larger than probes (limpet path, limpet policy show)"
        )
    elif (
        probes
        and not any(each.answered for each in probes)
        and any(each.answered for each in packets)
    ):
        yield f"packets get through, and the agent of {told.node} does not answer: does it run?"
    if until_direct and not told.direct:
        yield (
            "the pair still needs a relay (limpet path --probe says which direct ways were tried, "
            "and what the NAT has to do with it)"
            if _is_relayed(told.rung)
            else "no direct way has answered"
        )
