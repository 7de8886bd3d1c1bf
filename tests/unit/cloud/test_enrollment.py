"""A pod's token, as its own agent reads it, and what the ClusterNetwork says, or does not."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from limpet.base.errors import LimpetError
from limpet.cloud.enrollment import node_of_token, read_token
from limpet.cloud.second_road.api_server import told_controllers


def token(claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"header.{body}.signature"


def test_a_token_says_on_which_node_its_pod_is() -> None:
    claims = {"kubernetes.io": {"node": {"name": "crane-1", "uid": "u"}, "namespace": "n"}}

    assert node_of_token(token(claims)) == "crane-1"


@pytest.mark.parametrize(
    "text",
    [
        "", "lmp1_a_b_c", "a.b.c", "a.!.c", token({}), token([]), token({"kubernetes.io": {}}),
        token({"kubernetes.io": {"node": "crane-1"}}), token({"kubernetes.io": 7}),
        token({"kubernetes.io": {"node": None}}),
    ],
)  # fmt: skip
def test_one_that_does_not_is_refused_in_words(text: str) -> None:
    with pytest.raises(LimpetError, match="it names no node"):
        node_of_token(text)


def test_a_token_that_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(LimpetError, match=r"No such file.*limpet join --token"):
        read_token(file)
    file.write_bytes(b"x" * (1 << 17))
    with pytest.raises(LimpetError, match="larger than 64 KiB"):
        read_token(file)
    file.write_bytes(b"\xff")
    with pytest.raises(LimpetError, match="read token"):
        read_token(file)
    file.write_text(" a.b.c \n")
    assert read_token(file) == "a.b.c"


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (None, ((), "")),
        ({}, ((), "")),
        ({"controllers": {"addresses": ["192.0.2.1:7470"], "caCertificate": "pem"}},
         (("192.0.2.1:7470",), "pem")),
        ({"controllers": {"addresses": ["", "a b", "192.0.2.1:7470"]}}, (("192.0.2.1:7470",), "")),
        ({"controllers": {"addresses": 7}}, ((), "")),
        ({"controllers": None}, ((), "")),
        ([], ((), "")),
        ("x", ((), "")),
    ],
)  # fmt: skip
def test_what_cannot_be_used_of_a_status_is_left_out(status: object, found: object) -> None:
    assert told_controllers(status) == found
