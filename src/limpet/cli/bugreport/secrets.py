"""What may not leave the node: found by its value where it is kept, and by its form elsewhere.

Both, since a secret may stand where nobody expects it (a token in a log), and since one that is
known by its value is found in whatever form it is written.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from limpet.agent.settings import Settings
from limpet.cluster.api import TOKEN_MARK

LEFT_OUT = "[left out]"
_LEAST = 8
"""Characters of a value that is looked for: what is shorter is found in every other word."""
_LARGEST_FILE_BYTES = 1 << 20
_NAME = (
    r"[\w.-]*(?:secret|token|passw(?:or)?d|psk|api[_-]?key|private[_-]?key|credential|bearer|"
    r"key-data)[\w.-]*"
)
_PATTERNS = (
    # A private key, whatever its kind, also where lines are escaped.
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    re.compile(rf"\b{TOKEN_MARK}_[0-9A-Za-z]+_[\w-]{{16,}}"),  # a join token
    re.compile(r"\blimpet-page-[\w-]{40,}"),  # a token of the page; names of its pods are shorter
    re.compile(r"(?<=/enter#)[\w-]{16,}"),  # what a link to the page lets in by
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),  # a JSON web token: a service account's
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{8,}"),
)
_NAMED = re.compile(
    rf"""(?ix) (?P<name>["']? {_NAME} ["']? \s* [:=] \s*)"""
    rf"""(?P<value> "[^"\n]*" | '[^'\n]*' | [^\s,;"'}}\]]+)"""
)
"""A word that says what follows it: NAME = VALUE, "name": "value", name: value."""
_PATHS = re.compile(r"""^["']?/[\w./-]*["']?$""")
_HARMLESS = re.compile(r"""^["']?(true|false|null|none|\d{1,5}|)["']?$""", re.IGNORECASE)
_SECRET_NAME = re.compile(r"(?i)secret|token|passw|psk|key|credential|auth")


def redact(text: str, known: Iterable[str] = ()) -> str:
    """`text` without `known` values and without what looks like a secret. Pure."""
    for value in sorted(set(known), key=len, reverse=True):
        text = text.replace(value, LEFT_OUT)
    for pattern in _PATTERNS:
        text = pattern.sub(LEFT_OUT, text)
    return _NAMED.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    if _PATHS.match(value) or _HARMLESS.match(value):
        return match[0]  # where it is, not what it is
    quote = value[0] if value[0] in "\"'" else ""
    return f"{match['name']}{quote}{LEFT_OUT}{quote}"


def known_secrets(settings: Settings, processes: Iterable[int] = ()) -> set[str]:
    """Values that are on this node, in the forms in which they may be written; what cannot be read
    here can stand in no piece that is read here either. `processes`: their environment too."""
    found: set[str] = set()
    for path in _files(settings):
        try:
            if path.stat().st_size > _LARGEST_FILE_BYTES:
                continue
            data = path.read_bytes()
        except OSError:
            continue
        found |= set(_forms(data))
    for environment in (os.environ, *map(_environment, processes)):
        found |= {value for name, value in environment.items() if _SECRET_NAME.search(name)}
    return {each for each in found if len(each) >= _LEAST and not _is_place(each)}


def _is_place(value: str) -> bool:
    """Where something is, which is no secret. Of keys in base64 one of 64 begins as a path does."""
    return value.startswith("/") and os.path.exists(value)


def _files(settings: Settings) -> Iterator[Path]:
    source, folders = settings.source, settings.folders
    named = (source.token_file, source.join_token_file, source.kubeconfig)
    yield from (path for path in named if path is not None)
    yield Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
    kubeconfigs = os.environ.get("KUBECONFIG", "").split(":")
    yield from (Path(each) for each in kubeconfigs if each)
    yield Path.home() / ".kube/config"
    for folder in (folders.state_dir, folders.run_dir):
        for pattern in ("**/*.key", "**/*.key.*", "**/*token*", "**/*secret*", "**/*psk*"):
            yield from folder.glob(pattern)


def _forms(data: bytes) -> Iterator[str]:
    """A key's bytes in base64 and hexadecimal, a text itself and each of its telling values."""
    if len(data) <= 64 or b"\0" in data[:64]:
        for raw in {data, data[:32]}:
            yield base64.b64encode(raw).decode()
            yield base64.b64encode(raw).decode().rstrip("=")
            yield base64.urlsafe_b64encode(raw).decode().rstrip("=")
            yield raw.hex()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return
    yield text.strip()
    if "PRIVATE KEY" in text:
        yield from (line for line in text.splitlines() if len(line) > 40 and "-----" not in line)
    for match in _NAMED.finditer(text):
        value = match["value"].strip("\"'")
        if not _PATHS.match(value):
            yield value
            yield from _decoded(value)


def _decoded(value: str) -> Iterator[str]:
    """What a kubeconfig has in base64, line by line."""
    try:
        text = base64.b64decode(value, validate=True).decode("utf-8")
    except ValueError:
        return
    yield from (line for line in text.splitlines() if len(line) > 40 and "-----" not in line)


def _environment(pid: int) -> dict[str, str]:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(each.split("=", 1) for each in words if "=" in each)


def without_secrets(document: Any) -> Any:
    """A JSON document without values whose name says that they are secret. Pure."""
    match document:
        case dict():
            return {
                name: LEFT_OUT if _is_secret(name, value) else without_secrets(value)
                for name, value in document.items()
            }
        case list() | tuple():
            return [without_secrets(each) for each in document]
        case _:
            return document


def _is_secret(name: object, value: object) -> bool:
    named = re.fullmatch(_NAME, str(name), re.IGNORECASE)
    return bool(named) and isinstance(value, str) and bool(value) and not _PATHS.match(value)
