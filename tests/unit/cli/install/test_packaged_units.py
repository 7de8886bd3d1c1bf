"""Units that a package has brought are used, and never hidden by one that install has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.cli.install.files import Manifest
from limpet.cli.install.planned_files import PlannedFile, differs, put_file
from limpet.cli.install.units import service
from limpet.cli.install.units.service import UNIT, has_unit

TEXT = b"[Service]\nExecStart=limpet agent\n"


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlannedFile:
    """What install would write on a machine whose folders are these."""
    for name, folder in (("DEFAULT_UNIT_DIR", "etc"), ("PACKAGED_UNIT_DIR", "usr")):
        (tmp_path / folder).mkdir()
        monkeypatch.setattr(service, name, tmp_path / folder)
    return PlannedFile("unit", tmp_path / "etc" / UNIT, TEXT)


def package(tmp_path: Path, text: bytes) -> Path:
    unit = tmp_path / "usr" / UNIT
    unit.write_bytes(text)
    return unit


def test_without_a_package_the_unit_is_written(planned: PlannedFile, tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "installed.json")

    assert put_file(manifest, planned) == f"{planned.path}: written"
    assert planned.path.read_bytes() == TEXT
    assert has_unit(manifest, "unit", UNIT)


def test_the_packages_unit_is_used_as_it_is(planned: PlannedFile, tmp_path: Path) -> None:
    own = package(tmp_path, TEXT)
    manifest = Manifest(tmp_path / "installed.json")

    assert not differs(planned)
    assert put_file(manifest, planned) == f"{own}: the package's"
    assert not planned.path.exists()
    assert manifest.files == {}
    assert has_unit(manifest, "unit", UNIT)


def test_one_that_was_written_before_gives_way_to_the_packages(
    planned: PlannedFile, tmp_path: Path
) -> None:
    manifest = Manifest(tmp_path / "installed.json")
    put_file(manifest, PlannedFile("unit", planned.path, b"[Service]\nExecStart=/opt/limpet\n"))
    own = package(tmp_path, TEXT)

    assert differs(planned)
    assert put_file(manifest, planned) == f"{own}: the package's"
    assert not planned.path.exists()


def test_a_persons_unit_stays(planned: PlannedFile, tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "installed.json")
    put_file(manifest, planned)
    planned.path.write_bytes(b"[Service]\nExecStart=mine\n")
    package(tmp_path, TEXT)

    assert put_file(manifest, planned) == f"{planned.path}: kept"
    assert planned.path.read_bytes() == b"[Service]\nExecStart=mine\n"


def test_for_another_configuration_a_unit_is_written_over_the_packages(
    planned: PlannedFile, tmp_path: Path
) -> None:
    package(tmp_path, b"[Service]\nExecStart=limpet agent --config /etc/limpet/agent.toml\n")

    assert put_file(Manifest(tmp_path / "installed.json"), planned) == f"{planned.path}: written"
