"""Where a command finds a join token that `ps` does not show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from limpet.base.bounds.strangers import JOIN_TOKEN
from limpet.base.errors import LimpetError
from limpet.cli.options import given_token

TOKEN = "lmp1_abc_def_ghi"


def test_it_is_read_from_a_file_without_the_end_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert given_token("join", "", str(tmp_path / "token")) == TOKEN


def test_it_is_read_from_standard_input() -> None:
    script = "from limpet.cli.options import given_token; print(given_token('join', '', '-'))"
    done = subprocess.run(
        [sys.executable, "-c", script], input=f"{TOKEN}\n", capture_output=True, text=True
    )
    assert done.stdout == f"{TOKEN}\n", done.stderr


def test_a_person_at_a_terminal_is_asked_for_it_and_it_is_not_shown() -> None:
    script = "from limpet.cli.options import given_token; given_token('join', '', '-')"
    here, there = os.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=there,
            stdout=there,
            stderr=there,
            start_new_session=True,
        )
        os.close(there)
        shown = b""
        while b"token: " not in shown:
            shown += os.read(here, 1024)
        os.write(here, f"{TOKEN}\n".encode())
        assert process.wait() == 0
        shown += os.read(here, 1024)
    finally:
        os.close(here)
    assert TOKEN.encode() not in shown


def test_in_the_command_itself_it_counts_as_ever_and_not_beside_a_file() -> None:
    assert given_token("join", TOKEN, "") == TOKEN
    with pytest.raises(LimpetError, match="--token and --token-file exclude each other"):
        given_token("join", TOKEN, "-")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "it is empty"),
        (b"\xff", "codec can't decode"),
        (b"x" * (JOIN_TOKEN.most + 1), "it has more than 4,096 bytes"),
    ],
)
def test_what_is_no_token_is_told_in_words(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LimpetError, match=why):
        given_token("join", "", str(path))
