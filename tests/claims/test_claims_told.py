"""Where a person hears of a node that claims what is another's: a real agent, asked in each way."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from limpet.cluster.kinds import PRESENCE
from limpet.cluster.kinds.presence import Presence
from limpet.lab.world.machine import Machine
from tests.claims.test_claimed_words import PORT, Claimed, identity_of
from tests.lab.bed import a_world, findings, limpet, vtep_macs
from tests.lab.rungs import until_on
from tests.waiting import wait_until

FIGURES = "127.0.0.1:9471"
# The switch lets no source of a pod pass, so pairs are on VXLAN, where a MAC decides; with one IP
# version all are on one device, on which a MAC is one node's.
TOPOLOGY = f"""
[agent]
metrics_listen = ["{FIGURES}"]
[cloud]
addresses = ["203.0.113.10/24"]
[site.lan]
lan = ["192.168.10.0/24"]
drops_unknown_sources = true
nodes = {{ watcher = 1, guard = 0, victim = 1, claimant = 1 }}
"""
DEVICE = "limvx4"
FETCH = f"import urllib.request as r; print(r.urlopen('http://{FIGURES}/metrics').read().decode())"


@pytest.fixture(scope="module")
def claimed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Claimed]:
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("told")) as world:
        for other in ("victim", "claimant"):
            until_on(world, "watcher", other, "vxlan")
        found = Claimed(world)
        found.claimant.stop_agent()
        yield found


def claims_of(machine: Machine) -> list[dict[str, Any]]:
    """What its `status` says of others' claims."""
    status = json.loads(limpet(machine, "status", "-o", "json"))
    found: list[dict[str, Any]] = status["cluster"]["claims"]
    return found


def figure(machine: Machine, name: str) -> float:
    lines = machine.run(sys.executable, "-c", FETCH).splitlines()
    return next(float(line.split()[1]) for line in lines if line.split()[0] == name)


def test_who_claims_anothers_mac_is_named_wherever_a_person_looks(claimed: Claimed) -> None:
    watcher, victim, claimant = claimed.watcher, claimed.victim, claimed.claimant
    uid, name = identity_of(claimant).uid, claimant.label

    def claim(mac: str) -> None:
        at = tuple(each.ip for each in claimant.addresses)
        sequence = next(claimed.sequences)
        said = Presence(uid, sequence, "boot", addresses=at, port=PORT, vtep_macs={4: mac})
        claimed.say(watcher, claimed.sign(PRESENCE, said))

    own, stolen = vtep_macs(claimant)[DEVICE], vtep_macs(victim)[DEVICE]
    assert claims_of(watcher) == []
    assert figure(watcher, "limpet_agent_peer_claims") == 0
    claim(stolen)

    (found,) = wait_until(lambda: claims_of(watcher), "the watcher says who claims what")
    words = f"it announces {stolen} as its VXLAN device's MAC, which is that of "
    words += f"{victim.label} ({identity_of(victim).uid})"
    assert (found["node"], found["uid"], found["what"]) == (name, uid, words)
    told = f"node {name} (uid {uid}) claims what is not its own: {words}"
    assert findings(watcher)["peer-claims"] == told
    assert f"NODE {name} CLAIMS WHAT IS NOT ITS OWN: {words}" in limpet(watcher, "status")
    lines = [each for each in watcher.log().splitlines() if "a peer claims what is not" in each]
    assert [(f"uid={uid}" in line, words in line) for line in lines] == [(True, True)]
    assert figure(watcher, "limpet_agent_peer_claims") == 1

    claim(own)
    wait_until(lambda: not claims_of(watcher), "the claim is no more")
    assert "peer-claims" not in findings(watcher)
    assert figure(watcher, "limpet_agent_peer_claims") == 0
