"""`scripts/audit` runs the real pip-audit, which asks a server of this test in the words of OSV:
the advisories of the internet change, and are not reached from everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
ADVISORY = {
    "schema_version": "1.4.0",
    "id": "PYSEC-2014-8",
    "details": "jinja2 before 2.7.2 makes its files in a folder of all",
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI"},
            "ranges": [
                {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.7.2"}]},
            ],
        }
    ],
}
"""As api.osv.dev tells it, without what pip-audit does not read."""


class Osv(ThreadingHTTPServer):
    """Tells of `ADVISORY`, and of nothing else; an address of this machine only."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: set[tuple[str, str]] = set()
        """Package and version."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/query"


class _Answers(BaseHTTPRequestHandler):
    server: Osv

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, version = question["package"]["name"], question["version"]
        self.server.asked.add((name, version))
        is_hit = name == "jinja2" and version == "2.4.1"
        answer = json.dumps({"vulns": [ADVISORY]} if is_hit else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def osv() -> Iterator[Osv]:
    with Osv() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the script needs of one, with the locks that are asked of in it."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(CHECKOUT / "scripts" / "audit", tmp_path / "scripts")
    (tmp_path / ".venv").symlink_to(CHECKOUT / ".venv")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "run.lock").write_text("h11==0.16.0\n")
    return tmp_path


def audit(checkout: Path, url: str, *words: str) -> tuple[int, str]:
    """Exit code, and what is said."""
    done = subprocess.run(
        [checkout / "scripts" / "audit", *words],
        env={**os.environ, "PIP_AUDIT_VULNERABILITY_SERVICE": "osv", "PIP_AUDIT_OSV_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_what_is_known_to_be_vulnerable_in_any_lock_is_exit_code_1_and_only_told_in_check(
    checkout: Path,
) -> None:
    with osv() as server:
        assert audit(checkout, server.url) == (0, "No known vulnerabilities found\n")
        (checkout / "requirements" / "ui-tests.lock").write_text("jinja2==2.4.1\n")

        code, said = audit(checkout, server.url)
        told_code, told = audit(checkout, server.url, "--tell")

    assert code == 1
    assert "jinja2 2.4.1   PYSEC-2014-8 2.7.2" in said
    assert "Found 1 known vulnerability in 1 package" in said
    assert (told_code, told) == (0, said)


def test_where_nobody_can_be_asked_it_says_so_in_words_and_is_no_success(checkout: Path) -> None:
    with osv() as server:
        gone = server.url

    code, said = audit(checkout, gone)

    assert code == 2
    assert said.startswith("audit: not done, nobody here tells what is vulnerable")
    assert audit(checkout, gone, "--tell") == (0, said)


def test_a_package_that_could_not_be_asked_about_is_no_success_either(checkout: Path) -> None:
    """pip-audit ends well with what its index does not know, and a mirror without advisories knows
    nothing. There is no such package; without a network nothing is known of it either."""
    (checkout / "requirements" / "run.lock").write_text("limpet-no-such==1.0\n")

    done = subprocess.run(
        [checkout / "scripts" / "audit"],
        env={**os.environ, "PIP_AUDIT_VULNERABILITY_SERVICE": "pypi"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stdout.startswith("audit: not done")


def test_what_is_shipped_and_what_builds_it_is_asked_of(checkout: Path) -> None:
    shutil.rmtree(checkout / "requirements")
    shutil.copytree(CHECKOUT / "requirements", checkout / "requirements")

    with osv() as server:
        code, _ = audit(checkout, server.url)

    assert code == 0
    for lock in ("run", "build", "dev", "ui-tests", "docs"):
        text = (CHECKOUT / "requirements" / f"{lock}.lock").read_text()
        here = {
            line.split(" ")[0] for line in text.splitlines() if "==" in line and ";" not in line
        }
        assert here <= {f"{name}=={version}" for name, version in server.asked}, lock
