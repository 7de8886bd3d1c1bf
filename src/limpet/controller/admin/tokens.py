"""Join tokens, as a person makes them, sees them and takes them back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from typing import NewType

import structlog

from limpet.base.bounds.administrators import JOIN_TOKEN_S
from limpet.cluster.api import (
    ApiError,
    Token,
    format_token,
    label_key_problem,
    name_problem,
    secret_digest,
)
from limpet.cluster.kinds.grant import Role
from limpet.controller.admin.answers import (
    LetIn,
    TokenCreated,
    TokenLine,
    TokensListed,
    TokensRemoved,
)
from limpet.controller.admin.communities import Verb
from limpet.controller.communities.communities import find_community
from limpet.controller.registry.records import TOKEN, TokenRecord
from limpet.controller.registry.tables import Tables
from limpet.controller.state import tokens
from limpet.controller.state.authority import digest_of
from limpet.controller.state.cluster import Cluster

_log = structlog.get_logger("admin")

Who = NewType("Who", str)
"""Who asks. A verb that has such a parameter is told; nobody can say it in a request's body."""


class TokenAdmin:
    """The verbs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.verbs: dict[str, Verb] = {
            "token.create": self._create,
            "token.list": self._list,
            "token.remove": self._remove,
        }

    async def _create(
        self,
        who: Who,
        ttl_s: float,
        roles: tuple[str, ...] = ("edge",),
        communities: tuple[str, ...] = (),
        labels: dict[str, str] = {},  # noqa: B006 - each call has its own
        node_name: str = "",
    ) -> TokenCreated:
        """`node_name`: under which alone the node may join; empty: under any."""
        if not 0 < ttl_s <= JOIN_TOKEN_S.most:
            raise ApiError(f"create token: {ttl_s:g} s is no time from 1 s to a year")
        known_roles(roles, "create token")
        node_names = [node_name] if node_name else []
        for check, names in (
            (name_problem, (*communities, *node_names)),
            (label_key_problem, labels),
        ):
            for name in names:
                if problem := check(name):
                    raise ApiError(f"create token: {name[:80]!r}: {problem}")
        token_id, secret = secrets.token_hex(5), secrets.token_bytes(20)

        def make(tables: Tables) -> TokenCreated:
            for name in communities:
                find_community(tables, name)
            now_s = time.time()
            tokens.forget_tokens(tables, now_s)
            record = TokenRecord(
                digest=secret_digest(secret),
                created_at_s=now_s,
                expires_at_s=now_s + ttl_s,
                roles=roles,
                communities=communities,
                labels=labels,
                created_by=who,
                node_name=node_name,
            )
            tables.put(TOKEN, token_id, record)
            text = format_token(Token(token_id, secret, digest_of(tables.authority)))
            return TokenCreated(id=token_id, token=text, expires_at_s=record.expires_at_s)

        answer = await self._cluster.change(make)
        _log.info("made a token", id=token_id, roles=",".join(roles), by=who)
        return answer

    async def _list(self, every: bool = False) -> TokensListed:
        """`every`: also those that let in nobody any more, while they are kept."""

        def make(tables: Tables) -> list[TokenLine]:
            now_s = time.time()
            found = sorted(tables.tokens.items(), key=lambda each: (each[1].created_at_s, each[0]))
            return [
                token_line(tables, token_id, token, now_s)
                for token_id, token in found
                if every or tokens.state_of(tables, token_id, now_s).lets_in
            ]

        return TokensListed(tokens=await self._cluster.change(make))

    async def _remove(
        self, who: Who, ids: tuple[str, ...] = (), every: bool = False
    ) -> TokensRemoved:
        """`every`: all that may let somebody in."""
        if bool(ids) == every:
            raise ApiError("remove tokens: name some by their ids, or say all of them")

        def make(tables: Tables) -> TokensRemoved:
            done = tokens.remove_tokens(tables, ids, time.time(), every=every, by=who)
            return TokensRemoved(
                removed=list(done.removed),
                let_in=[
                    LetIn(id=each, **_node_of(tables, tables.tokens[each])) for each in done.let_in
                ],
                unknown=list(done.unknown),
            )

        answer = await self._cluster.change(make)
        _log.info("removed tokens", ids=",".join(answer.removed), by=who)
        return answer


def token_line(tables: Tables, token_id: str, token: TokenRecord, now_s: float) -> TokenLine:
    """All of it but what is secret."""
    return TokenLine(
        id=token_id,
        state=tokens.state_of(tables, token_id, now_s).value,
        roles=sorted(token.roles),
        communities=list(token.communities),
        labels=dict(token.labels),
        created_at_s=token.created_at_s,
        created_by=token.created_by,
        expires_at_s=token.expires_at_s,
        removed_at_s=token.removed_at_s,
        removed_by=token.removed_by,
        **_node_of(tables, token),
    )


def _node_of(tables: Tables, token: TokenRecord) -> dict[str, str]:
    """Name and uid of the node that the token let in, or the name that it is for."""
    grant = tables.grants.get(token.used_by)
    return {"node": grant.name if grant is not None else token.node_name, "uid": token.used_by}


def known_roles(names: Collection[str], what: str) -> frozenset[Role]:
    """Raises: ApiError for a role that there is not."""
    known = {each.value: each for each in Role if each is not Role.FLANNEL}  # nobody's choice
    for name in names:
        if name not in known:
            raise ApiError(f"{what}: role {name[:80]!r} is none of {', '.join(known)}")
    return frozenset(known[name] for name in names)
