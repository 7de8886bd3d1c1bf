"""The file of the tokens for the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.base.bounds.administrators import PAGE_TOKEN_S, PAGE_TOKENS
from limpet.base.errors import LimpetError
from limpet.web.access.sessions import digest_of
from limpet.web.access.tokens import TokenFile


def test_what_lets_in_is_not_in_the_file_and_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "page-tokens.json"
    TokenFile(path).create("ann", "limpet-page-secret", may_write=True, for_s=60.0)

    assert b"limpet-page-secret" not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    (token,) = TokenFile(path).all()
    assert (token.name, token.may_write) == ("ann", True)
    assert TokenFile(path).by_digest()[digest_of("limpet-page-secret")] == token


def test_another_process_sees_at_once_what_one_has_changed(tmp_path: Path) -> None:
    one, other = TokenFile(tmp_path / "t"), TokenFile(tmp_path / "t")
    assert other.all() == ()
    one.create("ann", "a", may_write=False, for_s=60.0)
    assert [each.name for each in other.all()] == ["ann"]
    one.remove("ann")
    assert other.all() == ()


def test_names_are_once_times_have_an_end_and_so_has_the_file(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "t")
    file.create("ann", "a", may_write=False, for_s=60.0)
    with pytest.raises(LimpetError, match="there is one of that name"):
        file.create("ann", "b", may_write=False, for_s=60.0)
    with pytest.raises(LimpetError, match="no time"):
        file.create("bob", "b", may_write=False, for_s=PAGE_TOKEN_S.most + 1)
    with pytest.raises(LimpetError, match="bob"):
        file.remove("bob")
    for at in range(PAGE_TOKENS.most - 1):
        file.create(f"n{at}", str(at), may_write=False, for_s=60.0)
    with pytest.raises(LimpetError, match="at most"):
        file.create("more", "more", may_write=False, for_s=60.0)


def test_a_damaged_file_lets_nobody_in_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b'{"tokens": [1')
    with pytest.raises(LimpetError, match="page tokens"):
        TokenFile(tmp_path / "t").by_digest()
