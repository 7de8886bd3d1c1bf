"""Who gets in, for how long, and how often somebody may try."""

from __future__ import annotations

import itertools

from limpet.base.bounds.strangers import PAGE_SIGN_INS
from limpet.base.bounds.visitors import PAGE_SESSIONS
from limpet.web.access.sessions import (
    IDLE_S,
    LONGEST_S,
    BrowserSession,
    LoginRefused,
    PageToken,
    Sessions,
    digest_of,
)

TOKEN = PageToken(name="ann", digest=digest_of("right"), created_at_s=0.0, expires_at_s=1e6)


def sessions(*tokens: PageToken) -> Sessions:
    numbers = itertools.count()
    by_digest = {each.digest: each for each in tokens}
    return Sessions(lambda: f"secret-{next(numbers)}", lambda: by_digest)


def entered(found: tuple[str, BrowserSession] | LoginRefused) -> tuple[str, BrowserSession]:
    assert not isinstance(found, LoginRefused)
    return found


def test_a_link_lets_in_once_and_only_to_look() -> None:
    book = sessions()
    link = book.new_link()

    _, session = entered(book.enter(link, "127.0.0.1", 10.0))

    assert not session.may_write
    assert not book.has_link
    assert isinstance(book.enter(link, "127.0.0.1", 11.0), LoginRefused)


def test_a_new_link_ends_the_one_before() -> None:
    book = sessions()
    first = book.new_link()
    second = book.new_link()

    assert isinstance(book.enter(first, "127.0.0.1", 10.0), LoginRefused)
    entered(book.enter(second, "127.0.0.1", 10.0))


def test_a_token_lets_in_as_often_as_it_is_shown_until_it_expires() -> None:
    book = sessions(TOKEN)
    cookie, _ = entered(book.enter("right", "a", 10.0))
    other, _ = entered(book.enter("right", "a", 10.0))

    assert cookie != other
    assert isinstance(book.enter("right", "a", 1e6), LoginRefused)


def test_who_signs_in_on_and_on_takes_the_places_of_his_own_sessions_and_of_nobody_else() -> None:
    other = PageToken(name="bob", digest=digest_of("other"), created_at_s=0.0, expires_at_s=1e6)
    book = sessions(TOKEN, other)
    link, _ = entered(book.enter(book.new_link(), "a", 10.0))
    his, _ = entered(book.enter("other", "a", 10.0))

    mine = [entered(book.enter("right", "a", 10.0))[0] for _ in range(PAGE_SESSIONS.most + 1)]

    assert book.find(his, 11.0) is not None
    assert book.find(link, 11.0) is not None
    assert [book.find(each, 11.0) for each in mine].count(None) > PAGE_SESSIONS.most // 2
    assert book.find(mine[-1], 11.0) is not None


def test_a_session_ends_when_its_token_does() -> None:
    tokens = {TOKEN.digest: TOKEN}
    numbers = itertools.count()
    book = Sessions(lambda: f"secret-{next(numbers)}", lambda: tokens)
    cookie, _ = entered(book.enter("right", "a", 10.0))
    assert book.find(cookie, 20.0) is not None

    tokens.clear()

    assert book.find(cookie, 30.0) is None


def test_another_token_of_the_same_name_does_not_keep_a_session() -> None:
    tokens = {TOKEN.digest: TOKEN}
    numbers = itertools.count()
    book = Sessions(lambda: f"secret-{next(numbers)}", lambda: tokens)
    cookie, _ = entered(book.enter("right", "a", 10.0))

    tokens.clear()
    # By a clock that was put back meanwhile.
    tokens["x"] = PageToken(name="ann", digest="x", created_at_s=5.0, expires_at_s=1e6)

    assert book.find(cookie, 30.0) is None


def test_a_session_ends_after_half_a_day_of_rest_and_after_a_week_in_any_case() -> None:
    book = sessions(TOKEN)
    cookie, _ = entered(book.enter("right", "a", 0.0))
    assert book.find(cookie, IDLE_S) is not None
    assert book.find(cookie, 2 * IDLE_S + 1) is None

    cookie, _ = entered(book.enter("right", "a", 0.0))
    for hour in range(0, int(LONGEST_S), 3600):
        assert book.find(cookie, float(hour)) is not None
    assert book.find(cookie, LONGEST_S + 1) is None


def test_wrong_tokens_are_counted_by_where_they_come_from_and_keep_no_right_one_out() -> None:
    book = sessions(TOKEN)
    for _ in range(PAGE_SIGN_INS.most):
        assert book.enter("wrong", "a", 10.0) == LoginRefused()
    assert book.enter("wrong", "a", 10.0) == LoginRefused(too_many=True)

    assert book.enter("wrong", "b", 10.0) == LoginRefused()
    entered(book.enter("right", "a", 10.0))
    assert book.enter("wrong", "a", 20.0) == LoginRefused(), "after a while one may try again"
