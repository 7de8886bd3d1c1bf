"""The thread that looks after SAs, whatever else its agent does."""

from __future__ import annotations

import os
import resource
import select
from contextlib import ExitStack
from pathlib import Path

from tests.waiting import wait_until

from limpet.datapath.tunnel.ipsec.daemon import IpsecDaemon
from limpet.datapath.tunnel.ipsec.keeper import IpsecKeeper
from limpet.datapath.tunnel.ipsec.process import IpsecProcess
from limpet.datapath.tunnel.ipsec.state import IpsecIdentity


def test_it_is_woken_in_an_agent_with_more_descriptors_than_select_takes(tmp_path: Path) -> None:
    """As one has that is the relay by TLS of a thousand nodes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as undo:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            undo.callback(os.close, os.dup(0))
        identity = IpsecIdentity("uid", b"", b"")
        keeper = IpsecKeeper(IpsecDaemon(IpsecProcess(tmp_path, program="none"), identity))
        undo.callback(keeper.stop)
        assert keeper._wake > 1024
        keeper.start()
        keeper.rest()

        wait_until(lambda: not is_readable(keeper._wake), "it has heard that it was woken")
        assert not keeper.problem


def is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
