"""`limpet events`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from limpet.agent.settings import load_settings
from limpet.cli.kept_events import events_of_node
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format
from limpet.cli.output import Output, put, put_document, say, show_table
from limpet.cli.reach import ReachOptions
from limpet.cli.reach import ask as ask_controller
from limpet.picture.timeline import Clock, Entry, Timeline
from limpet.timeline.answer import MOST_ENTRIES

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WAIT_S = 25.0
_CLOCKS = {Clock.KEPT: "", Clock.MENDED: "~", Clock.FREE: "", Clock.BEHIND: "?"}
"""After a time: put right afterwards, or known to be wrong."""

Ask = Callable[..., Timeline]


@on_node
def events(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Show only what has to do with this node.")
    ] = "",
    other: Annotated[
        str, typer.Argument(metavar="NAME", help="Show only what happened between the two nodes.")
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on and show what happens, until Ctrl-C.")
    ] = False,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Show only what happened since then, such as 30m, 6h, 3d or 2026-11-23T08:00.",
        ),
    ] = "",
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, max=MOST_ENTRIES, help="Show at most so many, the newest."),
    ] = 200,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Show what the controller remembers; --config is then the controller's.",
        ),
    ] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """What changed when: paths, peers, the controller, addresses; also while the agent is away."""
    asked: dict[str, Any] = {"about": [each for each in (name, other) if each], "limit": limit}
    if since:
        asked["since_s"] = _since_s(since, time.time())
    asker = _of_controller(config) if cluster else _of_agent(config)
    show_events(asker, asked, output, follow=follow)


def show_events(asker: Ask, asked: dict[str, Any], output: Output, *, follow: bool) -> None:
    """`follow`: goes on until nobody answers any more. Raises: LimpetError."""
    found = asker(**asked)
    _show(found, output)
    if follow:
        for entry in _following(asker, asked, found):
            _put_one(entry, output)


def _of_controller(config: Path | None) -> Ask:
    def asker(**asked: Any) -> Timeline:
        return ask_controller(ReachOptions(config), "events", Timeline, **asked)

    return asker


def _of_agent(config: Path | None) -> Ask:
    folders = load_settings(config).folders
    return partial(events_of_node, folders, lambda words: say(f"limpet events: {words}"))


def _following(asker: Ask, asked: dict[str, Any], found: Timeline) -> Iterator[Entry]:
    """The oldest first. Raises: LimpetError when nobody answers any more."""
    after = found.entries[0].sequence if found.entries else 0
    while True:
        # From the first that is shown on, its number says what comes after: clocks may be wrong.
        later_than = {"after": after} if after else {**asked, "after": 0}
        waiting = {"about": asked["about"], "wait_s": _WAIT_S, "limit": MOST_ENTRIES}
        later = asker(**{**later_than, **waiting})
        for entry in reversed(later.entries):
            after = max(after, entry.sequence)
            yield entry
        if after and not later.entries and _counts_from_one(asker, after):
            after = 0


def _counts_from_one(asker: Ask, after: int) -> bool:
    """Whoever answers now is not who has numbered `after`: another controller leads, or what was
    kept could not be read. All that it has is newer."""
    newest = asker(about=[], limit=1).entries
    return not newest or newest[0].sequence < after


def _show(found: Timeline, output: Output) -> None:
    rows = [_row(each) for each in reversed(found.entries)]
    show_table(
        found,
        output,
        rows,
        ("number", "time", "clock", "level", "kind", "names", "what"),
        wide=("number", "clock", "names"),
        nothing="nothing is kept that happened so",
    )


def _put_one(entry: Entry, output: Output) -> None:
    if output.is_document:
        put_document(entry, output)
        return
    row = _row(entry)
    put(f"{row['time']:<20} {row['level']:<5}  {row['kind']:<11}  {row['what']}")


def _row(entry: Entry) -> dict[str, Any]:
    at = datetime.fromtimestamp(entry.at_s).astimezone()
    who = f" (by {entry.who})" if entry.who else ""
    return {
        "time": at.strftime("%Y-%m-%d %H:%M:%S") + _CLOCKS[entry.clock],
        "level": entry.level.value,
        "kind": entry.kind,
        "what": entry.words + who,
        "number": entry.sequence,
        "names": ", ".join(filter(None, entry.names)),
        "clock": entry.clock.value,
    }


def _since_s(text: str, now_s: float) -> float:
    """Seconds since 1970. Raises: BadParameter."""
    unit = _UNITS_S.get(text[-1:])
    if unit is not None and text[:-1].isascii() and text[:-1].isdigit() and len(text) < 9:
        return now_s - int(text[:-1]) * unit
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is no time such as 30m, 6h, 3d or 2026-11-23T08:00", param_hint="--since"
        ) from None
