"""Who has signed in: one-time links, tokens, and sessions that come of them. Pure, time and
randomness passed in.

What lets somebody in is kept as its SHA-256. It has 256 random bits, so a slow hash would add
nothing but work that strangers can ask for.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from limpet.base.bounds.strangers import PAGE_SIGN_INS, PAGE_SIGN_INS_PER_MINUTE, PAGE_SOURCES
from limpet.base.bounds.visitors import (
    PAGE_IDLE_S,
    PAGE_LONGEST_S,
    PAGE_SESSIONS,
    PAGE_SESSIONS_OF_ONE,
)
from limpet.base.rate_limit import TokenBuckets

IDLE_S = float(PAGE_IDLE_S.most)
"""A session nobody has used for so long is over."""
LONGEST_S = float(PAGE_LONGEST_S.most)


class PageToken(msgspec.Struct, frozen=True, kw_only=True):
    """Lets whoever has it look, and act if it may write."""

    name: str
    digest: str
    """SHA-256 of the token, in hex."""
    may_write: bool = False
    created_at_s: float = 0.0
    expires_at_s: float = 0.0


@dataclass(slots=True)
class BrowserSession:
    """Session of one browser."""

    who: str
    """Name of its token; empty: it came by a one-time link."""
    may_write: bool
    proof: str
    """What a form of its own pages carries, and nobody else knows."""
    began_at_s: float
    used_at_s: float
    token_digest: str = ""
    """Digest of its token; empty: it came by a one-time link."""
    streams: int = 0
    """Streams that it has open."""

    @property
    def owner(self) -> str:
        """Whom it counts for: its token; one that came by a link, itself."""
        return f"token {self.who}" if self.who else self.proof


@dataclass(frozen=True, slots=True)
class LoginRefused:
    """Nobody was let in."""

    too_many: bool = False
    """Wrong ones came from there of late."""


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


class Sessions:
    """In memory: who restarts the page's process signs in again."""

    def __init__(
        self, random: Callable[[], str], tokens: Callable[[], Mapping[str, PageToken]]
    ) -> None:
        """`random`: a new secret each time. `tokens`: those that count now, by their digest."""
        self._random = random
        self._tokens = tokens
        self._links: set[str] = set()
        self._sessions: OrderedDict[str, BrowserSession] = OrderedDict()
        self._wrong = TokenBuckets(
            PAGE_SIGN_INS_PER_MINUTE.most / 60, PAGE_SIGN_INS.most, most=PAGE_SOURCES.most
        )

    def new_link(self) -> str:
        """A secret that lets in once; any before it do no more."""
        secret = self._random()
        self._links = {digest_of(secret)}
        return secret

    @property
    def has_link(self) -> bool:
        """The last link was not used yet."""
        return bool(self._links)

    def enter(
        self, secret: str, source: str, now_s: float
    ) -> tuple[str, BrowserSession] | LoginRefused:
        """The session's own secret, for a cookie, and the session.

        Only wrong ones are counted, by where they come from: who holds a right one gets in however
        many others try, also from behind the same address.
        """
        digest = digest_of(secret)
        token = self._tokens().get(digest)
        if digest in self._links:
            self._links.remove(digest)
            return self._begin(None, now_s)
        if token is not None and now_s < token.expires_at_s:
            return self._begin(token, now_s)
        return LoginRefused(too_many=not self._wrong.take(source, now_s))

    def find(self, secret: str, now_s: float) -> BrowserSession | None:
        """None: it is over, or never was; also when its token was removed, or has expired."""
        digest = digest_of(secret)
        session = self._sessions.get(digest)
        if session is None:
            return None
        if not self._counts(session, now_s):
            del self._sessions[digest]
            return None
        session.used_at_s = now_s
        self._sessions.move_to_end(digest)
        return session

    def leave(self, secret: str) -> None:
        self._sessions.pop(digest_of(secret), None)

    def _begin(self, token: PageToken | None, now_s: float) -> tuple[str, BrowserSession]:
        """`token`: None: it came by a link."""
        who, may_write, digest = "", False, ""
        if token is not None:
            who, may_write, digest = token.name, token.may_write, token.digest
        of_one = [secret for secret, each in self._sessions.items() if each.who == who]
        for least_used in of_one[: max(0, 1 + len(of_one) - PAGE_SESSIONS_OF_ONE.most)]:
            del self._sessions[least_used]
        secret = self._random()
        session = BrowserSession(who, may_write, self._random(), now_s, now_s, digest)
        self._sessions[digest_of(secret)] = session
        while len(self._sessions) > PAGE_SESSIONS.most:
            self._sessions.popitem(last=False)
        return secret, session

    def _counts(self, session: BrowserSession, now_s: float) -> bool:
        if now_s - session.used_at_s > IDLE_S or now_s - session.began_at_s > LONGEST_S:
            return False
        if not session.who:
            return True
        # Another token of that name is another: whoever had the former one is out.
        token = self._tokens().get(session.token_digest)
        return (
            token is not None
            and now_s < token.expires_at_s
            and token.name == session.who
            and token.may_write is session.may_write
        )
