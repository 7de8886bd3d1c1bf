"""What is kept for people: the timeline, tokens of the page, and what Docker keeps of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from limpet.base.errors import LimpetError
from limpet.base.records.codec import NewerRecordError
from limpet.cli.doctor.pods.attached import examine_docker
from limpet.picture.timeline import Happening
from limpet.timeline.clock import Moment
from limpet.timeline.file import NEWER, read_all
from limpet.timeline.log import Recorded, encode, entries_of
from limpet.web.access.tokens import TokenFile
from tests.fuzz.target import Shape, fuzzed


def _timelines() -> Iterator[bytes]:
    said = [
        Happening(kind="path", words="hub is reached by a relay", node="a", peer="b", was="tunnel"),
        Happening(kind="agent", words="the agent was started", names=("crane-1",)),
    ]
    moments = [Moment("1a2b3c4d", 12.5, 1.7e9), Moment("5e6f7a8b", 3.0, 9.0)]
    both = enumerate(itertools.product(moments, said), 1)
    yield b"".join(encode(Recorded(number, *each)) for number, each in both)


@fuzzed(seeds=_timelines, errors=(NewerRecordError,))
def timeline(data: bytes) -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        (Path(folder) / NEWER).write_bytes(data)
        entries = entries_of(read_all(Path(folder)))
    assert all(each.sequence >= 0 for each in entries)


def _page_tokens() -> Iterator[bytes]:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "tokens"
        tokens = TokenFile(path)
        tokens.create("anne", "secret", may_write=True, for_s=3600.0)
        tokens.create("wall", "other", may_write=False, for_s=86_400.0)
        yield path.read_bytes()


@fuzzed(seeds=_page_tokens, errors=(LimpetError,), shape=Shape.JSON)
def page_tokens(data: bytes) -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "tokens"
        path.write_bytes(data)
        TokenFile(path).all()


def _containers() -> Iterator[bytes]:
    yield json.dumps(
        [
            {"ID": "0a1b", "Name": "/k8s_POD_web-0_default_1_0", "Config": {"Hostname": "web-0"}},
            {"NetworkMode": "default", "PortBindings": {}},
        ]
    ).encode()


@fuzzed(seeds=_containers, shape=Shape.JSON)
def docker(data: bytes) -> None:
    """Both files have the same content where it is no pair."""
    try:
        name, host = (json.dumps(each).encode() for each in json.loads(data))
    except (ValueError, TypeError, RecursionError):
        name = host = data
    with TemporaryDirectory(dir="/dev/shm") as folder:
        container = Path(folder) / "0a1b"
        container.mkdir()
        (container / "config.v2.json").write_bytes(name)
        (container / "hostconfig.json").write_bytes(host)
        list(examine_docker(Path(folder)))
