"""What a join token, or a key, lets whom in for. Operations on the tables; none does I/O.

A token is held by whom it was answered to, and spent when that has confirmed the answer.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace as replace_fields

from limpet.cluster.api import (
    Code,
    JoinRequest,
    is_join_proof,
    name_problem,
    parse_token,
    secret_digest,
)
from limpet.cluster.keys import uid_of
from limpet.cluster.kinds.grant import Grant
from limpet.controller.registry.records import TOKEN, TokenRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables

HELD_S = 60.0
"""So long a machine has for the answer to its join, before another may join in its place."""
_FORGOTTEN_AFTER_S = 86_400.0
"""So long who shows a token is told what became of it; afterwards it is one that nobody made."""


def check_claim(tables: Tables, request: JoinRequest, ca_digest: bytes, now_s: float) -> str:
    """The uid of who wants in. Raises: RefusedError, ApiError."""
    if problem := name_problem(request.name):
        raise RefusedError(Code.BAD_REQUEST, f"join as {request.name[:80]!r}: {problem}")
    parsed = parse_token(request.token)
    if parsed.ca_digest != ca_digest:
        raise RefusedError(
            Code.BAD_TOKEN,
            f"join {request.name}: the token is of another cluster (make one here: "
            "limpet token create)",
        )
    token = tables.tokens.get(parsed.id)
    if token is None or not hmac.compare_digest(token.digest, secret_digest(parsed.secret)):
        raise _bad_token(
            request, "nobody made this token, or it has expired or was removed and is forgotten"
        )
    uid = check_proof(request)
    if token.node_name not in ("", request.name):
        raise _bad_token(request, f"the token lets in a node called {token.node_name} alone")
    is_in = uid in tables.grants and (
        token.used_by == uid or tables.nodes[uid].joined_by == parsed.id
    )
    if not is_in and token.removed_at_s is not None:
        ago_s = max(0.0, now_s - token.removed_at_s)
        raise _bad_token(request, f"an administrator removed the token {ago_s:.0f} s ago")
    if token.used_by and not is_in:
        _check_hold(tables, request, token, uid, now_s)
    if not is_in and now_s > token.expires_at_s:
        ago_s = now_s - token.expires_at_s
        raise _bad_token(request, f"the token expired {ago_s:.0f} s ago by the controller's clock")
    return uid


def _check_hold(
    tables: Tables, request: JoinRequest, token: TokenRecord, uid: str, now_s: float
) -> None:
    """Returns if another machine was answered with this token, and has not confirmed it for long;
    and if the token was to let in this one when a writer was stopped.

    Raises: RefusedError.
    """
    token_id = parse_token(request.token).id
    holder = holder_of(tables, token_id, token)
    is_own = token.used_by == uid
    may_hand_on = _may_hand_on(tables, token_id, token)
    if not may_hand_on or (token.held_since_s is None and not is_own):
        raise _bad_token(request, "the token was used by another node; each lets one in")
    if holder is not None and holder.name != request.name:
        raise _bad_token(
            request, f"another machine is about to join with this token, as {holder.name}"
        )
    if is_own or token.held_since_s is None:
        return
    left_s = HELD_S - abs(now_s - token.held_since_s)
    if left_s > 0:
        raise RefusedError(
            Code.TRY_AGAIN,
            f"join {request.name}: another machine began to join with this token and has not "
            f"confirmed it; if it gave up, ask again in {left_s:.0f} s",
            after_s=left_s,
        )


def holder_of(tables: Tables, token_id: str, token: TokenRecord) -> Grant | None:
    """The node that the token let in, which may not have confirmed it; None: it let in none, or
    that was removed. The token names another one where that was about to take this one's place when
    a writer was stopped."""
    if not token.used_by:
        return None
    found = (tables.grants.get(uid) for uid in _let_in(tables, token_id) or [token.used_by])
    return next((grant for grant in found if grant is not None and not grant.tombstone), None)


def _let_in(tables: Tables, token_id: str) -> list[str]:
    """Uids of those that the token let in, removed or not: one took the place of the other."""
    return [uid for uid, record in tables.nodes.items() if record.joined_by == token_id]


def _may_hand_on(tables: Tables, token_id: str, token: TokenRecord) -> bool:
    """Whether who holds the token is in, or is when it asks again: a removed one has spent it, also
    where the token names another that was about to take its place when a writer was stopped."""
    if holder_of(tables, token_id, token) is not None:
        return True
    return token.used_by not in tables.grants and not _let_in(tables, token_id)


def check_proof(request: JoinRequest) -> str:
    """The uid of the key that whoever wants in holds. Raises: RefusedError."""
    if not is_join_proof(request):
        raise RefusedError(
            Code.BAD_PROOF, f"join {request.name}: it does not hold the key that it names"
        )
    return uid_of(request.public_key)


def _bad_token(request: JoinRequest, why: str) -> RefusedError:
    return RefusedError(
        Code.BAD_TOKEN, f"join {request.name}: {why} (make one: limpet token create)"
    )


def check_communities(tables: Tables, name: str, token: TokenRecord) -> None:
    """Raises: RefusedError: in none of them, a node might share more than it was to share."""
    for each in token.communities:
        if each not in tables.communities:
            raise RefusedError(
                Code.BAD_TOKEN,
                f"join {name}: the token is for community {each}, which was removed since (make "
                "another: limpet token create)",
            )


def spend_token(tables: Tables, uid: str) -> None:
    """The node has confirmed its answer: the token that let it in lets in nobody else, also not
    one that was taking its place when a writer was stopped, whatever became of that."""
    for token_id, token in list(tables.tokens.items()):
        is_its_own = token.used_by == uid or token_id == tables.nodes[uid].joined_by
        if is_its_own and token.held_since_s is not None:
            tables.put(TOKEN, token_id, replace_fields(token, used_by=uid, held_since_s=None))


def forget_tokens(tables: Tables, now_s: float) -> None:
    """Drops tokens that expired, or were removed, a day ago, used or not."""
    for token_id, token in list(tables.tokens.items()):
        if now_s > token.expires_at_s + _FORGOTTEN_AFTER_S:
            tables.put(TOKEN, token_id, None)


# Seeing them, and taking them back


class TokenState(StrEnum):
    UNUSED = "unused"
    HELD = "held"
    """A machine was answered with it, or is when it asks again, and has not confirmed the answer:
    after `HELD_S` another one of the same name may take its place."""
    USED = "used"
    EXPIRED = "expired"
    REMOVED = "removed"

    @property
    def lets_in(self) -> bool:
        """Somebody may still join with it."""
        return self in (TokenState.UNUSED, TokenState.HELD)


def state_of(tables: Tables, token_id: str, now_s: float) -> TokenState:
    token = tables.tokens[token_id]
    if token.removed_at_s is not None:
        return TokenState.REMOVED
    has_expired = now_s > token.expires_at_s
    if not token.used_by:
        return TokenState.EXPIRED if has_expired else TokenState.UNUSED
    if token.held_since_s is None or has_expired or not _may_hand_on(tables, token_id, token):
        return TokenState.USED
    return TokenState.HELD


@dataclass(frozen=True, slots=True)
class Removed:
    """What came of taking tokens back, by their ids."""

    removed: tuple[str, ...]
    """They let in nobody from here on, whom they had not let in before."""
    let_in: tuple[str, ...]
    """Asked for, but a machine is in by it, which stays in."""
    unknown: tuple[str, ...]


def remove_tokens(
    tables: Tables, ids: Collection[str], now_s: float, *, every: bool = False, by: str = ""
) -> Removed:
    """Takes back what can be, also where something else that was asked for cannot. `every`: all
    that may let somebody in.

    A machine that was answered is in: it has its certificate, and is shown by what it confirms or
    asks again. So this shuts out others alone, also those that would take its place. What was
    removed counts as expired from then on, so it is forgotten in time, and a controller of a
    version that knows nothing of removals lets nobody in by it either.
    """
    wanted = list(dict.fromkeys(ids))
    if every:
        wanted = [each for each in tables.tokens if state_of(tables, each, now_s).lets_in]
    found = {each: tables.tokens[each] for each in wanted if each in tables.tokens}
    removed = []
    for token_id, token in found.items():
        state = state_of(tables, token_id, now_s)
        if state is TokenState.USED:
            continue
        removed.append(token_id)
        if state is not TokenState.REMOVED:
            changed = replace_fields(
                token,
                removed_at_s=now_s,
                removed_by=by,
                expires_at_s=min(token.expires_at_s, now_s),
            )
            tables.put(TOKEN, token_id, changed)
    return Removed(
        tuple(removed),
        tuple(each for each, token in found.items() if token.used_by),
        tuple(each for each in wanted if each not in found),
    )
