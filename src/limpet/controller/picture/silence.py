"""Nodes that fall silent or are back: states of nodes -> happenings. Pure, time passed in.

What is told has held for a while, so a node whose connection flaps makes no entries; and what many
nodes do at once is one entry, since then it is rather the controller that was cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from limpet.base.text.few import few
from limpet.picture.nodes import NodeState
from limpet.picture.said import Level
from limpet.picture.timeline import Entry, Happening

_TOGETHER = 8
"""So many at one look are told one by one."""
_NAMED = 12
"""Most nodes named in the words of one entry about more."""
_MOST_NAMES = 200
"""In one entry."""
_KIND, _SILENT, _ANSWERS = "node", "silent", "answers"


@dataclass(frozen=True, slots=True)
class NodeSilence:
    """State of one node, now."""

    name: str
    state: NodeState
    why: str = ""
    heard_at_s: float | None = None
    """None: nothing was heard from it since the controller's start."""


class Silence:
    """Whom the timeline calls silent."""

    def __init__(self, *, holds_s: float, unheard_s: float) -> None:
        """`holds_s`: so long a node is silent, or answers again, before it is told. `unheard_s`: so
        long nothing may be known of one, after a start of the controller or of the node."""
        self._holds_s = holds_s
        self._unheard_s = unheard_s
        self._silent: dict[str, float | None] = {}
        """By uid: since when, by the monotonic clock; None: since before this process."""
        self._silent_names: set[str] = set()
        """Names of nodes that an earlier process has told, whose uids are not known yet."""
        self._turning: dict[str, float] = {}
        """Uids of nodes that are otherwise than was told, and since when."""

    def remember(self, entries: Iterable[Entry]) -> None:
        """What the timeline says, the newest first: after a restart nothing is told twice."""
        seen: set[str] = set()
        for each in entries:
            if each.kind != _KIND or each.became not in (_SILENT, _ANSWERS):
                continue
            fresh = set(each.names) - seen
            seen |= fresh
            if each.became == _SILENT:
                self._silent_names |= fresh

    def look(self, silences: Mapping[str, NodeSilence], now_s: float) -> list[Happening]:
        """What is to be told now; by uid all nodes that there are. `now_s`: monotonic."""
        self._recall(silences)
        for known in (self._silent, self._turning):
            for uid in known.keys() - silences.keys():
                del known[uid]
        silent: list[str] = []
        back: list[str] = []
        for uid, each in silences.items():
            was, now = uid in self._silent, each.state is not NodeState.ANSWERS
            if was is now:
                self._turning.pop(uid, None)
                continue
            holds_s = self._unheard_s if each.state is NodeState.UNKNOWN else self._holds_s
            if now_s - self._turning.setdefault(uid, now_s) >= holds_s:
                (silent if now else back).append(uid)
        return [
            *self._fell_silent(silent, silences),
            *self._are_back(back, silences),
        ]

    def _recall(self, silences: Mapping[str, NodeSilence]) -> None:
        if self._silent_names:
            for uid, each in silences.items():
                if each.name in self._silent_names:
                    self._silent[uid] = None
            self._silent_names.clear()

    def _fell_silent(self, uids: list[str], silences: Mapping[str, NodeSilence]) -> list[Happening]:
        found = []
        for uid in uids:
            each = silences[uid]
            self._silent[uid] = self._turning.pop(uid)
            heard = (
                f": it told the last at {_moment(each.heard_at_s)}"
                if each.heard_at_s is not None
                else ""
            )
            words = f"{each.name}: silent, {each.why}{heard}"
            found.append(_happening(uid, each.name, words, Level.WARN, _ANSWERS, _SILENT))
        hint = "if it is nearly all of them, look at this controller's own network"
        return _told(found, f"silent now ({hint})")

    def _are_back(self, uids: list[str], silences: Mapping[str, NodeSilence]) -> list[Happening]:
        found = []
        for uid in uids:
            name, since_s, back_s = silences[uid].name, self._silent.pop(uid), self._turning[uid]
            del self._turning[uid]
            words = f"{name}: answers again"
            if since_s is not None:
                words += f", after {max(1, round((back_s - since_s) / 60))} min"
            found.append(_happening(uid, name, words, Level.OK, _SILENT, _ANSWERS))
        return _told(found, "answer again")


def _happening(uid: str, name: str, words: str, level: Level, was: str, became: str) -> Happening:
    return Happening(
        kind=_KIND, words=words, level=level, node=uid, names=(name,), was=was, became=became
    )


def _told(each_by_itself: list[Happening], what: str) -> list[Happening]:
    if len(each_by_itself) <= _TOGETHER:
        return each_by_itself
    first = each_by_itself[0]
    names = sorted(name for each in each_by_itself for name in each.names)
    return [
        Happening(
            kind=_KIND,
            words=f"{len(names)} nodes {what}: {few(names, _NAMED)}",
            level=first.level,
            names=tuple(names[:_MOST_NAMES]),
            was=first.was,
            became=first.became,
        )
    ]


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
