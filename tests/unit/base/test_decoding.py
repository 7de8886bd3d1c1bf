"""Types that several threads decode for the first time at once."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from limpet.base.decoding import (
    convert,
    decode_json,
    decode_plain_json,
    json_decoder,
    msgpack_decoder,
)

RACE = """
import sys, threading
from typing import Any
import msgspec
from limpet.agent.client import typed
from limpet.agent.status.node import Status
from limpet.agent.status.paths import PathAnswer
from limpet.base.decoding import convert, decode_json, json_decoder, msgpack_decoder

sys.setswitchinterval(1e-6)
LEG = dict.fromkeys(
    ("origin", "origin_pod", "origin_node", "target", "target_pod", "target_node", "reason"), ""
) | {"known": True, "let_in": None}
PATHS = {"paths": [{"version": 4, "reachable": True, "there": LEG, "back": LEG, "peer_uid": "",
                    "notes": []}], "probes": [], "nat": {}, "failed": []}


def fresh(number):
    parts = [(f"p{i}", "int | None", None) for i in range(20)]
    inner = msgspec.defstruct(f"Inner{number}", parts)
    names = {f"Inner{number}": inner}
    fields = [*parts, *((f"i{i}", f"list[Inner{number}] | None", None) for i in range(5))]
    outer = msgspec.defstruct(f"Outer{number}", fields, namespace={"__module__": "__main__"})
    globals().update(names)
    return outer


def race(*calls):
    ready = threading.Barrier(len(calls))

    def run(call):
        ready.wait()
        call()

    threads = [threading.Thread(target=run, args=(each,)) for each in calls]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def tried(kind):
    text, value = b'{"i0": [{"p1": 1}]}', {"i0": [{"p1": 1}]}
    return [
        lambda: decode_json(text, kind),
        lambda: convert(value, kind),
        lambda: json_decoder(kind).decode(text),
        lambda: msgpack_decoder(kind).decode(msgspec.msgpack.encode(value)),
    ]


race(*[lambda: typed(PATHS, PathAnswer)] * 8)
for number in range(12):
    race(*tried(fresh(number)) * 2)
print("whole")
"""


@pytest.mark.parametrize("process", range(2))
def test_threads_that_use_a_type_first_at_once_do_not_crash(process: int) -> None:
    """Without the lock of `decoding` the process ends by SIGSEGV: tried."""
    ran = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout) == (0, "whole\n"), ran.stderr


def test_a_type_that_has_no_hash_and_one_that_is_no_struct_are_decoded() -> None:
    assert decode_json(b"[1, 2]", list[int]) == [1, 2]
    assert convert(3, Annotated[int, Meta(extra={"a": 1})]) == 3


@pytest.mark.parametrize("data", [b'"\xff"', b"[" * 100_000, b"{", b"", '"\udc80"'])
def test_whatever_is_wrong_with_json_is_one_error(data: bytes | str) -> None:
    for kind in (str, list[Any], Any):
        with pytest.raises(msgspec.MsgspecError):
            decode_json(data, kind)
    with pytest.raises(msgspec.MsgspecError):
        decode_plain_json(data)
    if isinstance(data, bytes):
        with pytest.raises(msgspec.MsgspecError):
            json_decoder(str).decode(data)


@pytest.mark.parametrize("data", [b"\xa1\xff", b"\x91" * 100_000, b"\xc1", b""])
def test_whatever_is_wrong_with_messagepack_is_one_error(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        msgpack_decoder(str | list[Any]).decode(data)


def test_a_key_that_json_can_spell_and_utf8_cannot_is_refused_in_our_words() -> None:
    class Named(msgspec.Struct):
        name: str = ""

    with pytest.raises(msgspec.ValidationError, match="surrogates not allowed"):
        convert(json.loads('{"a\\ud800": 1}'), Named)
