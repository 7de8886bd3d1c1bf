"""One version, in the words of each that sorts it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from release import checkout
from release.archives import write_tar
from release.bundle import SOURCE, locked_debians
from release.chart import image_tag, semantic
from release.checkout import CHECKOUT, MACHINES, ReleaseError, sha256
from release.cross import MUSL
from release.deb import debian_version
from release.libraries import LOCK, PYTHONS, locked, needed
from release.sbom import bill


def test_debian_sorts_versions_as_python_does() -> None:
    rising = [
        "0.0.0.dev451+g1",
        "0.1.0.dev3+gbc37b1",
        "0.1.0a1",
        "0.1.0rc1",
        "0.1.0",
        "0.1.1.dev2+g2",
    ]

    shown = [debian_version(each) for each in rising]

    assert shown[1] == "0.1.0~~dev3+gbc37b1"
    for lower, higher in pairwise(shown):
        subprocess.run(["dpkg", "--compare-versions", lower, "lt", higher], check=True)


def test_helm_and_registries_take_every_version() -> None:
    for version in ("1.2.3", "1.2.3rc1", "0.0.0.dev451+gabc.d20261123"):
        assert re.fullmatch(
            r"\d+\.\d+\.\d+(-[0-9A-Za-z-.]+)?(\+[0-9A-Za-z-.]+)?", semantic(version)
        )
        assert re.fullmatch(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}", image_tag(version))
    with pytest.raises(ReleaseError, match="tags are vMAJOR"):
        semantic("1.2")


def test_every_python_gets_what_the_lock_says_for_it() -> None:
    everything = {each.name for each in locked()}
    for architecture in MACHINES:
        for python in PYTHONS:
            names = {each.name for each in needed(architecture, python)}
            assert names < everything
            assert "colorama" not in names  # of another system
            assert ("miniupnpc" in names) == (python != "3.14")


def test_what_musl_has_no_wheel_of_can_be_left_out_of_the_lock(tmp_path: Path) -> None:
    """As docs/platforms.md says."""
    page = (CHECKOUT / "docs" / "platforms.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ (sed .* run\.lock)$", page, flags=re.M)
    lock = tmp_path / "run.lock"
    shutil.copy(LOCK, lock)

    subprocess.run(["sh", "-euc", command], cwd=tmp_path, check=True)

    assert list(locked(lock)) == [each for each in locked() if each.name != "miniupnpc"]


def test_an_archive_has_the_same_bytes_wherever_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    checkout.epoch_s.cache_clear()
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "b").write_text("b")
        (folder / "a").write_text("a")
        files = {each.name: each for each in sorted(folder.iterdir(), reverse=name == "one")}
        write_tar(tmp_path / f"{name}.tar.gz", {**files, "install.sh": b"#!/bin/sh\n"}, packed=True)
    checkout.epoch_s.cache_clear()

    one, two = ((tmp_path / f"{name}.tar.gz").read_bytes() for name in ("one", "two"))
    assert hashlib.sha256(one).digest() == hashlib.sha256(two).digest()


def test_the_bill_names_all_that_is_locked_and_every_reference_has_its_component() -> None:
    document = json.loads(json.dumps(bill()))
    references = {each["bom-ref"] for each in document["components"]}

    assert {each.name.lower() for each in locked()} - {"colorama"} <= {
        each["name"].lower() for each in document["components"]
    }
    assert set(document["dependencies"][0]["dependsOn"]) == references
    assert len(references) == len(document["components"])


def test_the_bill_names_every_package_of_debian_that_is_locked() -> None:
    locks = sorted((CHECKOUT / "deploy").rglob("*.lock"))
    assert {each.parent.name for each in locks} == {"bundle", "image"}

    digests = {
        line.split()[-1]
        for lock in locks
        for line in lock.read_text(encoding="utf-8").splitlines()
        if line.startswith("deb ")
    }

    assert digests <= _digests_of_the_bill()
    shown = {
        each["purl"]: each["description"]
        for each in bill()["components"]
        if each["name"] == "libnftables1"
    }
    assert "in the bundle for trixie" in shown.values()
    assert "in the bundle for bookworm, the image" in shown.values()


def test_the_bill_names_all_that_lies_in_the_checkout_with_a_licence_of_its_own() -> None:
    folders = {
        licence.parent
        for each in ("src", "docs", "bpf", "shim", "deploy")
        for licence in (CHECKOUT / each).rglob("*LICENSE*")
    }
    assert len(folders) == 2
    files = {path for folder in folders for path in folder.glob("*.js")}

    assert {sha256(path) for path in files} <= _digests_of_the_bill()
    assert len(files) == 2


def test_the_bill_names_the_c_library_that_is_in_the_binary_in_the_version_of_each_machine() -> (
    None
):
    asked = ["dpkg-query", "--show", "--showformat=${source:Upstream-Version}", "musl-dev"]
    here = subprocess.run(asked, check=True, capture_output=True, text=True).stdout

    (found,) = (each for each in bill()["components"] if each["name"] == "musl")

    assert found["version"] == here
    assert all(f"_{here}-" in deb.path for deb in MUSL.values())


def _digests_of_the_bill() -> set[str]:
    return {
        each["content"]
        for component in bill()["components"]
        for each in component.get("hashes", ())
    }


def test_the_bundles_debians_are_fixed_by_checksum_for_both() -> None:
    debs = list(locked_debians())

    assert {deb.suite for deb in debs} == {"bookworm", "trixie"}
    assert all(re.fullmatch("[0-9a-f]{64}", deb.sha256) for deb in debs)
    for suite in ("bookworm", "trixie"):
        assert {"python3", "libnftables1"} <= {deb.package for deb in debs if deb.suite == suite}


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_scripts_of_the_package_can_be_read_by_a_shell(script: str) -> None:
    subprocess.run(["sh", "-n", CHECKOUT / "deploy" / "debian" / script], check=True)
    subprocess.run(["sh", "-n", SOURCE / "install.sh"], check=True)


def test_the_units_of_the_package_are_what_install_would_write() -> None:
    from release.deb import PYTHON

    from limpet.base.configuration import AGENT_PATH
    from limpet.cli.install.units.service import unit_text

    text = unit_text(AGENT_PATH)
    assert text.count(sys.executable) == 1
    assert f"ExecStart={PYTHON} -P -m limpet agent" in text.replace(sys.executable, PYTHON)
