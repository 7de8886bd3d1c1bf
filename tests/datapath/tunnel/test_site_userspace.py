"""An agent minds the userspace WireGuard that it has started."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.base.process import programs as companion
from limpet.datapath.tunnel.wireguard import process as wireguard_process
from tests.beds.overlay_bed import is_lost
from tests.datapath.tunnel.site_tunnel_bed import SiteTunnelBed
from tests.waiting import pause, wait_until


def test_a_program_that_hangs_is_told_of_and_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wireguard_process, "_REST_S", 0.3)
    monkeypatch.setattr(companion, "_STOP_TIMEOUT_S", 0.2)
    bed = SiteTunnelBed(tmp_path)
    try:
        one, other = bed.agents
        bed.join_all()
        pid = one.pid
        if not pid:
            pytest.skip("this kernel has WireGuard: no program is started")
        pause(pid)

        with monkeypatch.context() as hasty:
            hasty.setattr(wireguard_process, "_ANSWER_TIMEOUT_S", 0.3)
            one.do(lambda: one.part_loop.resync("the timer's"))

        assert "no answer for seconds" in one.peer_parts.tunnels.wireguard.trouble
        # From here on a healthy program has the time that it needs.
        wait_until(lambda: one.has_tunnel and one.pid not in (0, pid))
        wait_until(lambda: one.peer_parts.tunnels.wireguard.trouble == "")
        address = other.node.address(4)
        wait_until(lambda: not is_lost(one.node.pod, address), "it carries packets again")
    finally:
        bed.close()
