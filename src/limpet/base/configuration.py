"""Configuration files: TOML, read as a whole, every value checked by what a struct says of it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields

from limpet.base.addresses import Listen, Prefix, parse_listen
from limpet.base.decoding import convert
from limpet.base.errors import ConfigError
from limpet.base.text.nearest import nearest

AGENT_PATH, CONTROLLER_PATH = Path("/etc/limpet/agent.toml"), Path("/etc/limpet/controller.toml")
"""Where the settings of each are, unless something else is said."""
AGENT_VARIABLE, CONTROLLER_VARIABLE = "LIMPET_CONFIG", "LIMPET_CONTROLLER_CONFIG"
"""Environment variables that name other files."""
AGENT_SOCKET, CONTROLLER_SOCKET = (
    Path("/run/limpet/agent.sock"),
    Path("/run/limpet/controller.sock"),
)
"""Where they answer a person's commands, unless their settings say otherwise (`socket`)."""

_Kind = TypeVar("_Kind", bound=Struct)


def written(form: Any, read: Callable[[Any], Any], description: str) -> Meta:
    """Meta of a field whose value `read` makes of what the file has, which is of type `form`.

    `read` raises ValueError in words. `description`: what is wanted, for "not a …".
    """
    return Meta(description=description, extra={"form": form, "read": read})


def read_listens(value: str | list[str]) -> tuple[Listen, ...]:
    """Raises: ValueError in words."""
    return tuple(map(parse_listen, [value] if isinstance(value, str) else value))


def read_prefixes(value: list[str]) -> tuple[Prefix, ...]:
    """Raises: ValueError in words."""
    prefixes = tuple(map(ip_network, value))
    for prefix in prefixes:
        if prefix.version == 6 and prefix.network_address.ipv4_mapped is not None:
            # No packet has such an address, and Pythons write it in two ways.
            raise ValueError(f"{prefix} is IPv4 in IPv6's form: write it as IPv4")
    return prefixes


_ABSOLUTE = Annotated[str, Meta(pattern=r"^/[^\0]*\Z")]
_LISTEN = 'an address and port such as "127.0.0.1:9471" or "[::1]:9471", or a list of them'

AbsolutePath = Annotated[Path, written(_ABSOLUTE, Path, "an absolute path")]
Prefixes = Annotated[
    tuple[Prefix, ...],
    written(list[str], read_prefixes, 'a list of prefixes such as ["10.244.7.0/24"]'),
]
Listens = Annotated[tuple[Listen, ...], written(str | list[str], read_listens, _LISTEN)]
Text = Annotated[str, Meta(pattern=r"^[^\0]+\Z", description="a text")]
LogLevel = Literal["debug", "info", "warning", "error"]
Port = Annotated[int, Meta(ge=1, le=65535)]


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
    except PermissionError as error:
        words = "permission denied (only root may read it: sudo)"
        raise ConfigError(f"read configuration {source}: {words}") from error
    except OSError as error:
        raise ConfigError(f"read configuration {source}: {error.strerror}") from error
    try:
        return parse_toml(text.decode()), str(source)
    except ValueError as error:
        raise ConfigError(f"parse configuration {source}: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Raises: ValueError in words; tomllib's own errors are not all that it raises."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it has too many levels") from error


def parse_configuration(kind: type[_Kind], document: Mapping[str, Any], source: str) -> _Kind:
    """What `document` says. Raises: ConfigError that names value, field and `source`."""
    try:
        return read_struct(kind, document)
    except ValueError as error:
        raise ConfigError(f"read configuration {source}: {error}") from error


def read_struct(kind: type[_Kind], table: Mapping[str, Any], at: str = "") -> _Kind:
    """What `table` says, with the defaults of `kind`; `at` is the table's name in its file.

    A field that is a struct itself takes its keys from the same table.
    Raises: ValueError that names value and key.
    """
    known = sorted(configuration_keys(kind))
    if unknown := sorted(table.keys() - set(known)):
        where = f" in [{at}]" if at else ""
        meant = nearest(unknown[0], known)
        hint = f"did you mean {meant}?" if meant else f"known: {', '.join(known)}"
        raise ValueError(f"unknown key {unknown[0]!r}{where} ({hint})")
    return _struct(kind, table, at and f"{at}.")


def configuration_keys(kind: type[Struct]) -> Iterator[str]:
    """As they are written in a file."""
    for field in fields(kind):
        if _is_struct(field):
            yield from configuration_keys(field.type)
        else:
            yield field.encode_name


def _is_struct(field: FieldInfo) -> bool:
    return isinstance(field.type, type) and issubclass(field.type, Struct)


def _struct(kind: type[_Kind], table: Mapping[str, Any], prefix: str) -> _Kind:
    values = {}
    for field in fields(kind):
        key = field.encode_name
        if _is_struct(field):
            values[field.name] = _struct(field.type, table, prefix)
        elif key in table:
            try:
                values[field.name] = read_value(table[key], field.type)
            except ValueError as error:
                raise ValueError(f"{prefix}{key} = {table[key]!r}: {error}") from error
        elif field.required:
            form, meta = _form(field.type)
            here = f"[{prefix}{key}]" if get_origin(form) is dict else f"{prefix}{key}"
            raise ValueError(f"{here} is missing" + (f": {meta.description}" if meta else ""))
    return kind(**values)


def read_value(value: Any, kind: Any) -> Any:
    """Raises: ValueError that says what `kind` wants."""
    form, meta = _form(kind)
    hook = meta.extra or {} if meta is not None else {}
    try:
        value = convert(value, hook.get("form", kind))
    except msgspec.ValidationError as error:
        raise ValueError(_wanted(form, meta)) from error
    return hook["read"](value) if hook else value


def _form(kind: Any) -> tuple[Any, Meta | None]:
    """The bare type, and what is said of it; of what may also be None, the other."""
    for part in (kind, *get_args(kind)):
        if get_origin(part) is Annotated:
            return part.__origin__, part.__metadata__[0]
        if get_origin(part) is Literal:
            return part, None
    return kind, None


def _wanted(form: Any, meta: Meta | None) -> str:
    if meta is not None and meta.description:
        return f"not {meta.description}"
    if form is int and meta is not None:
        return f"not a whole number from {meta.ge} to {meta.le}"
    if form is float and meta is not None:
        return "not a number of seconds " + ("above 0" if meta.gt == 0 else f"from {meta.ge:g}")
    if form is bool:
        return "neither true nor false"
    if get_origin(form) is dict:
        return "not a table"
    enum = isinstance(form, type) and issubclass(form, Enum)
    words = [each.value for each in form] if enum else get_args(form)
    return f"not one of {', '.join(map(str, words))}"
