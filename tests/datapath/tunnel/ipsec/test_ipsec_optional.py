"""An agent has IPsec's modules in memory only where the cluster names it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
from pathlib import Path
import limpet.agent.main, limpet.agent.wiring
from limpet.cluster.kinds.network import TunnelBackend
from tests.datapath.tunnel.site_tunnel_bed import SiteTunnelBed
from tests.unit.cluster_values import CLUSTER_KEY, network, seal_network
from tests.waiting import wait_until

def loaded():
    return sorted(name for name in list(sys.modules) if "ipsec" in name or name.startswith("vici"))

bed = SiteTunnelBed(Path(sys.argv[1]))
try:
    bed.join_all()
    agent = bed.agents[0]
    found = [loaded()]
    named = seal_network(network(2, tunnel_backend=TunnelBackend.IPSEC), CLUSTER_KEY)
    agent.await_(agent._offer(named))
    wait_until(lambda: {"limpet.datapath.tunnel.ipsec.apply", "vici"} <= set(loaded()))
    Path(sys.argv[1], "found").write_text(json.dumps([*found, loaded()]))
finally:
    bed.close()
"""


def test_with_wireguard_alone_nothing_of_ipsec_is_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    before, after = json.loads((tmp_path / "found").read_text())

    assert before == []
    assert {"limpet.datapath.tunnel.ipsec.apply", "vici"} <= set(after)
