"""What a fuzz target is: a parser, what it may raise, and samples of what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

Seeds = Callable[[], Iterable[bytes]]


class Shape(Enum):
    """What an input is made of, which a mutation may keep to."""

    BYTES = "bytes"
    JSON = "json"
    JSON_LINES = "json lines"
    MSGPACK = "msgpack"
    TEXT = "text"


@dataclass(frozen=True)
class Target:
    """One parser, or several that get the same input."""

    name: str
    parse: Callable[[bytes], object]
    """Raises AssertionError where what was parsed is not what encoding it again says."""
    seeds: Seeds
    """Made of the code's own encoders where there are such."""
    errors: tuple[type[Exception], ...]
    """What the parser says that it raises for what it does not take; anything else is a fault."""
    shape: Shape
    most_bytes: int
    """Of an input: more is refused before the parser, or it is where a person's patience ends."""

    def attempt(self, data: bytes) -> bool:
        """Whether the parser takes it. Raises: whatever is a fault."""
        try:
            self.parse(data)
        except self.errors:
            return False
        return True


_found: dict[str, Target] = {}


def fuzzed(
    *,
    seeds: Seeds,
    errors: tuple[type[Exception], ...] = (),
    shape: Shape = Shape.BYTES,
    most_bytes: int = 4096,
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:
    """Makes a function of bytes a target, under its name."""

    def register(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
        name = parse.__name__.replace("_", "-")
        assert name not in _found, f"two targets are called {name}"
        _found[name] = Target(name, parse, seeds, errors, shape, most_bytes)
        return parse

    return register


def registered() -> dict[str, Target]:
    """Every target of the files that were imported, by name."""
    return dict(sorted(_found.items()))
