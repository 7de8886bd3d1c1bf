"""What a report leaves out."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.agent.settings import Settings
from limpet.base.settings import Folders
from limpet.cli.bugreport.secrets import LEFT_OUT, known_secrets, redact, without_secrets
from limpet.cluster.api import Token, format_token
from limpet.web.access.tokens import PREFIX

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"
PEM = (
    "-----BEGIN EC PRIVATE KEY-----\n"
    "MHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY\n"
    "-----END EC PRIVATE KEY-----\n"
)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"level=info header=Authorization value={JWT}", JWT),
        (PEM, "MHcCAQEEII"),
        (PEM.replace("\n", "\\n"), "MHcCAQEEII"),
        (PEM[:60], "MHcCAQEEII"),
        ('token = "abc123def456"', "abc123def456"),
        ('{"password": "correct horse"}', "correct horse"),
        ("client-key-data: TUhjQ0FRRUVJSXJZU1NOUQ==", "TUhjQ0"),
        ("PRESHARED_KEY_PSK=aGVsbG8gd29ybGQ", "aGVsbG8"),
        ("https://admin:hunter2@192.0.2.7:6443/", "hunter2"),
        ("curl -H 'Bearer s3cr3t-token-value'", "s3cr3t-token-value"),
        (f"ann has {PREFIX}{'x1-_' * 11}", "x1-_x1-_"),
        (f"http://127.0.0.1:7480/enter#{'x1-_' * 11}", "x1-_x1-_"),
        ("joined with " + format_token(Token("k7", bytes(range(32)), bytes(32))), "aaaqeayeaud"),
    ],
)
def test_what_looks_like_a_secret_is_left_out(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)
    assert LEFT_OUT in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        'kubernetes_token_file = "/var/run/secrets/token"',
        "tokens: 12",
        "the token is refused",
        "10.244.7.2 lladdr 0a:58:c0:00:02:02 REACHABLE",
        "limpet-page-7d9c6b5f4d-abcde is ready",
        "GET /enter 200",
        '"key": "kf24y64embfrlqbn5gszfcvj"',
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert redact(text) == text


def test_a_key_that_begins_as_a_path_does_is_known_and_a_path_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 64 keys was left in."""
    key = b"\xfc" + bytes(range(31))
    (tmp_path / "node.key").write_bytes(key)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "node.key"))
    monkeypatch.setenv("OTHER_TOKEN", "/" + "x" * 5000)

    found = known_secrets(Settings(folders=Folders(state_dir=tmp_path, run_dir=tmp_path)))

    assert base64.b64encode(key).decode() in found
    assert "/" + "x" * 5000 in found
    assert str(tmp_path / "node.key") not in found


@given(
    before=st.text(max_size=20),
    secret=st.text("abcdefghijklmnop0123456789+/", min_size=8, max_size=60),
    after=st.text(max_size=20),
)
def test_a_known_value_never_stays(before: str, secret: str, after: str) -> None:
    assert secret not in redact(before + secret + after, {secret})


def test_a_document_loses_values_and_keeps_its_form() -> None:
    document = {"pods": [{"name": "web", "token": "s3cr3t-value"}], "token_file": "/etc/t"}
    assert without_secrets(document) == {
        "pods": [{"name": "web", "token": LEFT_OUT}],
        "token_file": "/etc/t",
    }
