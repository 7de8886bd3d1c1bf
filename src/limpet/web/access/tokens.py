"""The tokens that let people look at the page in the cloud: a file, or (`secret.py`) a Secret."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from limpet.base.bounds.administrators import PAGE_TOKEN_S, PAGE_TOKENS
from limpet.base.decoding import decode_json
from limpet.base.disk import refusals, write_durably
from limpet.base.errors import LimpetError
from limpet.base.records.version import VERSION, NewerFormatError, check_version
from limpet.cluster.api import name_problem
from limpet.web.access.sessions import PageToken, digest_of

FILE_NAME = "page-tokens.json"
CERTIFICATE_FOLDER = "page"
"""Both beside the controller's database."""
"""In the folder of the controller's database."""
PREFIX = "limpet-page-"
"""So that scanners for secrets, and people, know one when they see it."""


class Tokens(msgspec.Struct, frozen=True):
    version: int = VERSION
    tokens: tuple[PageToken, ...] = ()


class TokenBook(ABC):
    """Tokens, wherever they are kept."""

    @abstractmethod
    def all(self) -> tuple[PageToken, ...]:
        """By name. Raises: LimpetError."""

    @abstractmethod
    def _write(self, tokens: Iterable[PageToken]) -> None:
        """Raises: LimpetError."""

    def create(self, name: str, secret: str, *, may_write: bool, for_s: float) -> PageToken:
        """Raises: LimpetError."""
        if problem := name_problem(name):
            raise LimpetError(f"create page token {name[:80]!r}: {problem}")
        if not 0 < for_s <= PAGE_TOKEN_S.most:
            raise LimpetError(f"create page token {name}: {for_s:g} s is no time up to a year")
        now_s = time.time()
        kept = [each for each in self.all() if each.expires_at_s > now_s - 86_400]
        if any(each.name == name for each in kept):
            raise LimpetError(
                f"create page token {name}: there is one of that name (limpet ui token remove "
                f"{name}, or another name)"
            )
        if len(kept) >= PAGE_TOKENS.most:
            raise LimpetError(
                f"create page token {name}: there are {len(kept)}, and at most {PAGE_TOKENS.most} "
                "are kept (remove some: limpet ui token list)"
            )
        token = PageToken(
            name=name,
            digest=digest_of(secret),
            may_write=may_write,
            created_at_s=now_s,
            expires_at_s=now_s + for_s,
        )
        self._write([*kept, token])
        return token

    def remove(self, name: str) -> None:
        """Whoever has signed in with it is out at once. Raises: LimpetError."""
        tokens = self.all()
        kept = [each for each in tokens if each.name != name]
        if len(kept) == len(tokens):
            raise LimpetError(f"remove page token {name}: there is none (limpet ui token list)")
        self._write(kept)


class TokenFile(TokenBook):
    """Read again when it is another one; for root alone, as the folder it is in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._as_of: tuple[int, int, int] | None = None
        self._tokens: tuple[PageToken, ...] = ()

    def by_digest(self) -> Mapping[str, PageToken]:
        """Raises: LimpetError where it cannot be read: then nobody is let in."""
        return {each.digest: each for each in self.all()}

    def all(self) -> tuple[PageToken, ...]:
        with refusals("read", self._path):
            try:
                found = self._path.stat()
            except FileNotFoundError:
                self._as_of, self._tokens = None, ()
                return ()
            as_of = (found.st_ino, found.st_mtime_ns, found.st_size)
            if as_of != self._as_of:
                self._tokens = parse_tokens(self._path.read_bytes(), str(self._path))
                self._as_of = as_of
        return self._tokens

    def _write(self, tokens: Iterable[PageToken]) -> None:
        with refusals("write", self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._path, encode_tokens(tokens))
        self._as_of = None


def encode_tokens(tokens: Iterable[PageToken]) -> bytes:
    return msgspec.json.encode(Tokens(tokens=tuple(sorted(tokens, key=lambda each: each.name))))


def parse_tokens(content: bytes, where: str) -> tuple[PageToken, ...]:
    """Raises: LimpetError."""
    try:
        check_version(content)
        return decode_json(content, Tokens).tokens
    except NewerFormatError as error:
        raise LimpetError(f"read page tokens in {where}: {error}") from error
    except (ValueError, msgspec.MsgspecError) as error:
        raise LimpetError(
            f"read page tokens in {where}: {error} (put it right, or remove it and make new ones: "
            "limpet ui token create)"
        ) from error
