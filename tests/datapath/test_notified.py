"""Whose changes of our nftables tables are told, also where the agent is in a PID namespace."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import closing

import pytest

from limpet.base.ownership import NFT_TABLE
from limpet.datapath.notified import Notified
from limpet.linux.nftables import Nftables

_OUTSIDE: list[str] = []
_INSIDE = ["--pid", "--mount-proc"]


async def listen() -> None:
    """In a network namespace of its own; says why each of two changes is told."""
    with closing(Nftables()) as nft:
        notified = Notified(lambda: None)
        notified.listen()
        try:
            nft.put_table(f"table inet {NFT_TABLE} {{\n}}\n")
            own = notified.why_nftables()
            subprocess.run(["nft", f"add chain inet {NFT_TABLE} anothers"], check=True)
            sys.stdout.write(f"{os.getpid()}|{own}|{notified.why_nftables()}")
        finally:
            notified.close()


@pytest.mark.parametrize("namespaces", [_OUTSIDE, _INSIDE], ids=["outside", "in a PID namespace"])
def test_our_own_changes_are_no_reason_to_look_and_anothers_are(namespaces: list[str]) -> None:
    done = subprocess.run(
        ["unshare", "--net", "--fork", *namespaces, sys.executable, "-m", __name__],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    pid, own, anothers = done.stdout.split("|")
    assert (pid == "1") is (namespaces is _INSIDE)
    assert own == ""
    assert "another program" in anothers


if __name__ == "__main__":
    asyncio.run(listen())
