"""What befalls a site's gateway, and who is on which rung: `limpet lab`, as a person runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.lab.launch import launcher
from limpet.lab.measure.report import describe
from limpet.lab.measure.shown import SiteShown, WorldShown
from limpet.lab.world.worlds import find_world, take_down
from tests.waiting import wait_until

NAME = f"laa{os.getpid()}"
TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24"]
nodes = { hub = 0 }
relays = ["hub"]
[site.yard]
lan = ["192.168.1.0/24"]
nat = "cgn"
nodes = { gate = 1, fence = 0 }
[site.field]
lan = ["192.168.7.0/24"]
nodes = { post = 0 }
"""


def lab(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "limpet", "lab", words[0], "--name", NAME, *words[1:]]
    return launcher().run(command)


def succeeds(*words: str) -> str:
    done = lab(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def refused(*words: str) -> str:
    done = lab(*words)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def status() -> WorldShown:
    return describe(find_world(NAME))


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    file = tmp_path_factory.mktemp("topology") / "laa.toml"
    file.write_text(TOPOLOGY)
    try:
        succeeds("up", str(file))
        yield
    finally:
        take_down(NAME)


def yard() -> SiteShown:
    return next(site for site in status().sites if site.site == "yard")


def test_a_site_s_nat_and_what_has_befallen_it_are_shown() -> None:
    before = yard()
    assert (before.nat, before.udp_blocked) == ("cgn", False)

    assert "the gateway of yard has rebooted" in succeeds("fault", "gateway", "yard")
    assert "seen as 198.18." in succeeds("fault", "public-address", "all")
    assert "yard: UDP is dropped, both ways" in succeeds("fault", "udp", "yard")
    broken = yard()
    shown = succeeds("status")
    succeeds("fault", "udp", "yard", "--restore")

    assert broken.public_address != before.public_address
    assert broken.public_address in shown
    assert "UDP is blocked" in shown
    assert not yard().udp_blocked


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("gateway", "moon"), "find the gateway of moon: that is no site of this world"),
        (("gateway", "yard", "--restore"), "it is over as soon as it happened"),
        (
            ("public-address", "field"),
            "field: it has no NAT, its nodes have addresses of their own",
        ),
    ],
)
def test_what_cannot_befall_a_site_is_refused(words: tuple[str, ...], expected: str) -> None:
    assert expected in refused("fault", *words)


def rungs() -> dict[tuple[str, str], str]:
    return {(each.source, each.target): each.rung for each in status().paths}


def test_every_pair_is_in_the_status_and_in_the_picture(tmp_path: Path) -> None:
    file = tmp_path / "world.svg"
    wait_until(lambda: rungs()["gate", "fence"] == rungs()["fence", "gate"] == "route")

    shown = succeeds("status", "--svg", str(file))

    nodes = ("hub", "gate", "fence", "post")
    assert set(rungs()) == {(one, other) for one in nodes for other in nodes if one != other}
    assert ["gate", "fence", "route"] in [line.split()[:3] for line in shown.splitlines()]
    drawn = {
        (each.get("data-from"), each.get("data-to")): each.get("data-rungs")
        for each in ElementTree.parse(file).getroot().iter()
        if each.get("class") == "pair"
    }
    assert drawn["gate", "fence"] == "route route"
    assert len(drawn) == 6


def test_a_picture_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    words = refused("status", "--svg", str(tmp_path / "absent" / "world.svg"))

    assert "absent/world.svg: No such file or directory" in words


def test_an_agent_that_is_gone_is_named_in_its_paths() -> None:
    succeeds("fault", "kill", "post")

    found = [each for each in status().paths if each.source == "post"]
    succeeds("fault", "kill", "post", "--restore")

    assert [each.why for each in found] == ["its agent does not answer"] * 3
