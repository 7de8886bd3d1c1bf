"""What is taken away of Services that are off now."""

from __future__ import annotations

from pathlib import Path

from limpet.agent.services import give_back
from limpet.base.settings import Folders
from limpet.services.kept import KEPT_FILE
from tests.beds.namespaces import NetnsFactory


def test_a_disk_that_gives_nothing_up_does_not_end_the_agent(
    make_netns: NetnsFactory, tmp_path: Path
) -> None:
    folders = Folders(
        state_dir=tmp_path / "state", run_dir=tmp_path / "run", data_dir=tmp_path / "networks"
    )
    stuck = folders.cluster_dir / KEPT_FILE / "a folder is not removed as a file is"
    stuck.mkdir(parents=True)

    with make_netns("node").entered():
        give_back(folders, keep=False)

    assert stuck.exists()
