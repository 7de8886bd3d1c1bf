"""Configuration files: TOML, read as a whole, every value checked."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from limpet.base.errors import ConfigError


def read_configuration(
    path: Path | None, *, variable: str, default: Path
) -> tuple[dict[str, Any], str]:
    """The document of `path`, and where it is from.

    When `path` is None, the file that the environment variable `variable` names, or `default`;
    empty when nothing names a file and that one is not there.
    Raises: ConfigError that names the file.
    """
    if path is None and (named := os.environ.get(variable)):
        path = Path(named)
    source = path or default
    try:
        text = source.read_bytes()
    except FileNotFoundError as error:
        if path is None:
            return {}, str(source)
        raise ConfigError(f"read configuration {source}: there is no such file") from error
    except OSError as error:
        raise ConfigError(f"read configuration {source}: {error.strerror}") from error
    try:
        return tomllib.loads(text.decode()), str(source)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"parse configuration {source}: {error}") from error


def checked_values(
    document: Mapping[str, Any], fields: Mapping[str, Callable[[Any], Any]], source: str
) -> dict[str, Any]:
    """What each key's function makes of its value.

    Raises: ConfigError that names value, key and `source`.
    """
    unknown = sorted(document.keys() - fields.keys())
    if unknown:
        raise ConfigError(
            f"read configuration {source}: unknown key {unknown[0]!r} "
            f"(known: {', '.join(sorted(fields))})"
        )
    values = {}
    for key, value in document.items():
        try:
            values[key] = fields[key](value)
        except ValueError as error:
            raise ConfigError(f"read configuration {source}: {key} = {value!r}: {error}") from error
    return values
