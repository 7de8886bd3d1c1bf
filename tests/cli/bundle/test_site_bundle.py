"""`limpet bundle`: from a release's bundle one for a site, checked; damaged ones give nothing."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from release.archives import write_tar
from release.bundle import SOURCE

from limpet.lab.launch import launcher

FOLDER = "limpet-1.2.3-bundle-amd64"
FILES: dict[str, Path | bytes] = {
    "install.sh": SOURCE / "install.sh",
    "wheels/limpet-1.2.3-py3-none-any.whl": bytes(3_000_000),
    "docs/index.md": b"# Limpet\n",
}
Edit = Callable[[dict[str, Path | bytes]], None]


def sums_of(files: Mapping[str, Path | bytes]) -> bytes:
    found = {
        name: content if isinstance(content, bytes) else content.read_bytes()
        for name, content in files.items()
    }
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in found.items()]
    return "".join(sorted(lines)).encode()


def released(folder: Path, edit: Edit = lambda _: None) -> Path:
    """As a release writes it; `edit` damages it afterwards."""
    files: dict[str, Path | bytes] = {**FILES, "SHA256SUMS": sums_of(FILES)}
    edit(files)
    path = folder / f"{FOLDER}.tar"
    write_tar(path, {f"{FOLDER}/{name}": data for name, data in files.items()}, packed=False)
    return path


def bundle(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "limpet", "bundle", *map(str, words)]
    return launcher().run(command, timeout=60)


def unpack(path: Path, folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(["tar", "-xf", path, "-C", folder], check=True)
    return folder / FOLDER


def test_a_site_gets_what_the_release_has_and_its_own_settings_all_of_it_checked(
    tmp_path: Path,
) -> None:
    settings = tmp_path / "harbour.toml"
    settings.write_text('log_level = "debug"\n')
    source, target = released(tmp_path), tmp_path / "harbour.tar"
    words = (source, target, "--settings", settings, "--controller", "192.0.2.10:7470")

    done = bundle(*words, "--controller", "cloud.example", "-o", "json")

    answer = json.loads(done.stdout)
    assert answer["sha256"] == hashlib.sha256(target.read_bytes()).hexdigest()
    assert (answer["folder"], answer["bytes"]) == (FOLDER, target.stat().st_size)
    inside = unpack(target, tmp_path / "there")
    assert (inside / "site/controllers").read_text() == "192.0.2.10:7470\ncloud.example\n"
    assert (inside / "site/agent.toml").read_text() == settings.read_text()
    assert len([each for each in inside.rglob("*") if each.is_file()]) == answer["files"]
    # What the machine there does before anything else.
    assert subprocess.run([inside / "install.sh", "--check"], check=False).returncode == 0
    with (inside / "site/controllers").open("a") as file:
        file.write("198.51.100.66\n")
    assert subprocess.run([inside / "install.sh", "--check"], check=False).returncode == 1

    again = tmp_path / "again.tar"
    assert bundle(source, again, *words[2:], "--controller", "cloud.example").returncode == 0
    assert again.read_bytes() == target.read_bytes()


def damaged(files: dict[str, Path | bytes]) -> None:
    files["docs/index.md"] = b"# Limpid\n"


def one_more(files: dict[str, Path | bytes]) -> None:
    files["docs/more.md"] = b"more"


def one_less(files: dict[str, Path | bytes]) -> None:
    del files["docs/index.md"]


def no_sums(files: dict[str, Path | bytes]) -> None:
    del files["SHA256SUMS"]


def nonsense_sums(files: dict[str, Path | bytes]) -> None:
    files["SHA256SUMS"] = b"\xff\x00 all is well\n"


def of_a_site(files: dict[str, Path | bytes]) -> None:
    files["site/controllers"] = b"192.0.2.10:7470\n"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (damaged, "docs/index.md in "),
        (one_more, "does not name the files that are in it"),
        (one_less, "does not name the files that are in it"),
        (no_sums, "it has no SHA256SUMS"),
        (nonsense_sums, "does not name the files that are in it"),
        (of_a_site, "is of a site already"),
    ],
)
def test_one_that_is_not_as_it_was_made_gives_nothing(
    edit: Edit, words: str, tmp_path: Path
) -> None:
    source = released(tmp_path, edit)

    done = bundle(source, tmp_path / "site.tar", "--controller", "192.0.2.10:7470")

    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == [source.name]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{FOLDER}/../../etc/passwd", tarfile.REGTYPE),
        ("/etc/passwd", tarfile.REGTYPE),
        (f"{FOLDER}/link", tarfile.SYMTYPE),
        (f"{FOLDER}", tarfile.DIRTYPE),
        ("elsewhere/file", tarfile.REGTYPE),
    ],
)
def test_an_archive_that_would_write_elsewhere_is_no_bundle(
    name: str, kind: bytes, tmp_path: Path
) -> None:
    source = released(tmp_path)
    with tarfile.open(source, "a") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, "/etc/passwd", 0
        tar.addfile(info, io.BytesIO())

    done = bundle(source, tmp_path / "site.tar", "--controller", "192.0.2.10:7470")

    assert done.returncode == 1
    assert "is not the bundle of a release" in done.stderr
    assert not (tmp_path / "site.tar").exists()


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b" + bytes(600), bytes(10240), b"x" * 5000])
def test_what_is_no_archive_is_told_in_words(content: bytes, tmp_path: Path) -> None:
    source = tmp_path / "some.tar"
    source.write_bytes(content)

    done = bundle(source, tmp_path / "site.tar", "--controller", "192.0.2.10:7470")

    assert done.returncode == 1
    assert "is not the bundle of a release" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_site_is_to_have_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    source, target = released(tmp_path), tmp_path / "site.tar"
    settings = tmp_path / "site.toml"
    settings.write_text("log_levle = 'debug'\n")
    for words, said in (
        ((), "say what the site has of its own"),
        (("--settings", settings), "log_level"),
        (("--settings", tmp_path / "none.toml"), "there is no such file"),
        (("--controller", "192.0.2.10:port"), "192.0.2.10:port"),
        (("--controller", "a\n--force"), "is no HOST:PORT"),
    ):
        done = bundle(source, target, *words)
        assert (done.returncode != 0, said in done.stderr) == (True, True), done.stderr
        assert "Traceback" not in done.stderr
    missing = bundle(tmp_path / "none.tar", target, "--controller", "192.0.2.10")
    assert "none.tar" in missing.stderr
    assert not target.exists()
