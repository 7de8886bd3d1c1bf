"""Who leads, by a Lease: a state machine, pure, with monotonic time passed in.

No clock of another machine counts. A Lease that changes was renewed when this controller saw the
change; one that it has not seen change for the Lease's whole duration is nobody's, and may be
taken. A leader counts from before it asked for the renewal that was answered last, so it has
stopped before anybody else can begin, as long as both clocks run at about one rate.

Who leads knows the Lease from the answer to its last renewal, and renews it without reading it
again. It reads it where that is not sure: before its first wish, after one that was refused, and
after one whose answer was lost, which may have been granted nevertheless, or may be granted yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

DURATION_S = 15.0
"""A Lease that nobody has renewed for so long may be taken."""
RENEW_S = 10.0
"""A leader whose renewals fail for so long has lost it: before others may take it."""
RETRY_S = 2.0
"""Between two attempts to renew or to take it."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a Lease says."""

    holder: str
    """Empty: it was given back."""
    duration_s: float
    transitions: int
    version: str
    """Any change gives another."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to write, if the Lease still is as it was seen."""

    holder: str
    transitions: int
    version: str
    """Version of the Lease that it replaces; empty: there is none, it is to be made."""


@dataclass(frozen=True, slots=True)
class Election:
    """What one controller knows. Each step gives the next."""

    me: str
    """A name that no other process has, nor this one after a restart."""
    seen: Held | None = None
    seen_at_s: float = 0.0
    """When this controller first saw the Lease as it is."""
    leads_until_s: float = 0.0
    sure: bool = False
    """It wrote the Lease as it was seen, and has asked for nothing since that was not answered: it
    need not be read before the next wish."""

    def leads(self, now_s: float) -> bool:
        """Whether this controller may write now."""
        return now_s < self.leads_until_s

    @property
    def leader(self) -> str:
        """Who holds the Lease as it was last seen; empty: nobody."""
        return self.seen.holder if self.seen is not None else ""

    def observe(self, found: Held | None, now_s: float) -> Election:
        """The Lease was read; None: there is none."""
        if found is None:
            return replace(self, seen=None, seen_at_s=now_s, leads_until_s=0.0, sure=False)
        known = self.seen is not None and self.seen.version == found.version
        mine = found.holder == self.me
        return replace(
            self,
            seen=found,
            seen_at_s=self.seen_at_s if known else now_s,
            leads_until_s=self.leads_until_s if mine else 0.0,
            sure=False,
        )

    def wish(self, now_s: float) -> Wish | None:
        """To renew it or to take it; None: another holds it."""
        if self.seen is None:
            return Wish(self.me, 0, "")
        held = self.seen
        if held.holder == self.me:
            return Wish(self.me, held.transitions, held.version)
        if held.holder and now_s < self.seen_at_s + max(held.duration_s, DURATION_S):
            return None
        return Wish(self.me, held.transitions + 1, held.version)

    def asked(self) -> Election:
        """A wish is about to be sent: until it is granted nobody knows what the Lease says."""
        return replace(self, sure=False)

    def written(self, found: Held, asked_at_s: float) -> Election:
        """A wish was granted; `asked_at_s`: when it was sent."""
        return replace(
            self, seen=found, seen_at_s=asked_at_s, leads_until_s=asked_at_s + RENEW_S, sure=True
        )

    def lost(self) -> Election:
        """It leads no more, whatever the Lease says, which is to be read."""
        return replace(self, leads_until_s=0.0, sure=False)
