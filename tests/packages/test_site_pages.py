"""What pages tell a site without internet, as it stands: two Debians on one LAN, and a release."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.docs.worlds import Player
from tests.packages.roots import SUITES, RootMachine
from tests.packages.test_first_ten_minutes import Machines, lan

pytestmark = pytest.mark.timeout(1500)

PAGES = ("docs/release.md", "docs/commands/bundle.md")
"""The first puts the package on `one`, where the commands of the second are typed."""


@pytest.fixture
def machines(released: Path, tmp_path: Path) -> Iterator[dict[str, RootMachine]]:
    """Fresh, with a release's files that somebody carried there."""
    for path in (*released.glob("limpet-*-bundle-*.tar"), released / "SHA256SUMS"):
        shutil.copy(path, tmp_path)
    for site in ("harbour", "farm"):
        (tmp_path / f"{site}.toml").write_text('log_level = "debug"\n')
    with lan(SUITES[0], tmp_path) as found:
        yield found


def test_a_site_without_internet_comes_into_its_cluster(machines: dict[str, RootMachine]) -> None:
    player = Player(Machines(machines), {})
    release, bundle = ([b for b in blocks(page) if "deb" in b.marker] for page in PAGES)
    alone, *of_the_site = release

    player.play(alone)
    assert "ready" in machines["one"].run("limpet", "status", "--wait", "--timeout", "60")
    machines["one"].run("limpet", "controller", "install")
    player.play_all(of_the_site)

    assert "ready" in machines["two"].run("limpet", "status", "--wait", "--timeout", "60")
    assert machines["two"].run("cat", "/etc/limpet/agent.toml").startswith('log_level = "debug"\n')
    assert "10.244.0.0/" in machines["one"].run("limpet", "node", "list")
    player.play_all(bundle)
