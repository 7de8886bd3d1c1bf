"""`limpet bugreport` on a node with known secrets in every place where they can be."""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from limpet.cli.bugreport import archive, pieces
from limpet.cli.bugreport.archive import write_report
from limpet.cli.bugreport.pieces import Piece
from limpet.cli.main import main
from limpet.cluster.api import Token, format_token
from limpet.lab.launch import ByExec, launching_with
from limpet.lab.world.node import LabNode
from limpet.linux.namespaces import Namespace
from tests.conftest import NodeFactory
from tests.waiting import wait_until

NOBODY_UID = 65534


def jwt(words: str) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"RS256"}').decode().rstrip("=")
    body = base64.urlsafe_b64encode(json.dumps({"sub": words}).encode()).decode().rstrip("=")
    return f"{head}.{body}.{secrets.token_urlsafe(40)}"


class Secrets:
    """Made anew for each run, and put where such things are."""

    def __init__(self) -> None:
        self.key = b"\xfc" + secrets.token_bytes(31)  # in base64 it begins as a path does
        self.private_key = Ed25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        self.join_token = format_token(Token("k7", secrets.token_bytes(32), bytes(32)))
        self.account = jwt("system:serviceaccount:limpet")
        self.kubeconfig_token = secrets.token_urlsafe(32)
        self.psk = base64.b64encode(b"\xfc" + secrets.token_bytes(31)).decode()
        self.environment = secrets.token_urlsafe(32)
        self.url = secrets.token_hex(8)
        self.conflist = secrets.token_urlsafe(20)

    def forms(self) -> Iterator[str]:
        """Each as it may be written."""
        yield from self.private_key.decode().splitlines()[1:-1]
        for raw in (self.key,):
            yield base64.b64encode(raw).decode().rstrip("=")
            yield base64.urlsafe_b64encode(raw).decode().rstrip("=")
            yield raw.hex()
        yield from self.join_token.split("_")[2:3]
        yield self.account.rpartition(".")[2]
        yield self.kubeconfig_token
        yield base64.b64encode(self.private_key).decode()[60:100]
        yield from (self.psk, self.environment, self.url, self.conflist)


@pytest.fixture
def known() -> Secrets:
    return Secrets()


@pytest.fixture
def node(make_node: NodeFactory, known: Secrets, tmp_path: Path) -> LabNode:
    node = make_node(segments=["10.245.80.0/24"])
    cluster = node.folder / "state" / "cluster"
    cluster.mkdir(parents=True)
    (cluster / "node.key").write_bytes(known.key)
    (cluster / "node.key.pem").write_bytes(known.private_key)
    (node.folder / "state" / "join-token").write_text(known.join_token + "\n")
    (node.folder / "state" / "tunnel-psk").write_text(known.psk)
    (tmp_path / "account-token").write_text(known.account)
    key_data = base64.b64encode(known.private_key).decode()
    (tmp_path / "kubeconfig").write_text(
        f"users:\n- name: u\n  user:\n    token: {known.kubeconfig_token}\n"
        f"    client-key-data: {key_data}\n"
    )
    node.agent_environment["CLOUD_API_KEY"] = known.environment
    with launching_with(ByExec()):  # a fork keeps the environment of who forked it in /proc
        node.start_agent()
    node.pod("web-0").add()
    kept = node.folder / "state" / "events" / "events.log"
    wait_until(lambda: kept.exists() and kept.stat().st_size, "what happened is on the disk")
    with node.config_path.open("a") as file:
        file.write(f"# token = {known.join_token}\n# https://u:{known.url}@192.0.2.7/\n")
        file.write(f"# psk: {known.psk}\n# {known.kubeconfig_token} {key_data}\n")
    with node.agent.log.open("a") as log:
        log.write(f"token={known.kubeconfig_token}\n")
        log.write(f"joined with {known.join_token}\nurl https://u:{known.url}@192.0.2.7/\n")
    comment = f'add table inet other {{ comment "{known.environment}"; }}'
    node.run("nft", comment)
    node.run(
        "nft", f'add chain inet other c {{ comment "{base64.b64encode(known.key).decode()}"; }}'
    )
    return node


def report(node: LabNode, path: Path, *words: str) -> dict[str, str]:
    """Text by name within the archive."""
    with Namespace(node.netns_path) as netns, netns.entered():
        code = main(["bugreport", "--file", str(path), "--config", str(node.config_path), *words])
    assert code == 0
    return content(path)


def content(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        return {
            member.name.partition("/")[2]: file.read().decode()
            for member in tar
            if (file := tar.extractfile(member)) is not None
        }


def test_no_secret_of_the_node_is_in_the_archive(
    node: LabNode, known: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("LIMPET_TEST_TOKEN", known.account)
    found = report(node, tmp_path / "r.tar.gz")

    assert {"status.json", "doctor.json", "plan.json", "CONTENTS.txt", "network/nft.txt"} <= set(
        found
    )
    assert "table inet other" in found["network/nft.txt"]
    assert "web-0" in found["pods.json"]
    assert "10.245.80.0/24" in found["settings/agent.toml"]
    assert json.loads(found["plan.json"]) == {"pending": []}
    assert "the agent started" in found["events.json"]
    assert "ready" in found["logs/agent-file.txt"]
    assert "private keys, tokens" in found["CONTENTS.txt"]
    for name, text in found.items():
        for secret in known.forms():
            assert secret not in text, name
    assert (tmp_path / "r.tar.gz").stat().st_mode & 0o777 == 0o600


def test_of_a_log_in_a_file_the_end_is_there_and_no_half_of_a_secret(
    node: LabNode, known: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = f"{known.join_token} was used\nthe last line\n"
    with node.agent.log.open("a") as log:
        log.write(tail)
    monkeypatch.setattr(pieces, "LOG_BYTES", len(tail) - 20)

    found = report(node, tmp_path / "r.tar.gz")

    assert found["logs/agent-file.txt"] == "the last line\n"


def test_it_works_when_the_agent_is_dead_and_says_what_is_not_there(
    node: LabNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.stop_agent(signal.SIGKILL)
    found = report(node, tmp_path / "r.tar.gz", "--output", "json")

    assert "status.json" not in found
    assert "status.json  not there: ask the agent" in found["CONTENTS.txt"]
    assert "agent-silent" in found["doctor.json"]
    assert "the agent started" in found["events.json"]
    assert "logs/agent-file.txt  not there: the agent of this node" in found["CONTENTS.txt"]
    contents = {each["file"]: each for each in json.loads(capsys.readouterr().out)["contents"]}
    assert contents["network/address.txt"]["bytes"] > 0
    assert contents["status.json"]["bytes"] == 0


@pytest.fixture
def folder_of_nobody() -> Iterator[Path]:
    """Below no folder that another run of pytest closes to others when it begins."""
    with tempfile.TemporaryDirectory(prefix="limpet-nobody-", dir="/tmp") as folder:
        os.chown(folder, NOBODY_UID, NOBODY_UID)
        yield Path(folder)


def test_who_is_not_root_gets_what_there_is(node: LabNode, folder_of_nobody: Path) -> None:
    there = folder_of_nobody
    (there / "agent.toml").write_text(f'socket = "{node.socket}"\n')
    script = "import sys; from limpet.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [
            *("setpriv", f"--reuid={NOBODY_UID}", "--clear-groups", "--"),
            *(sys.executable, "-c", script, "bugreport", "--file", str(there / "r.tar.gz")),
            *("--config", str(there / "agent.toml")),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(there)},
    )
    assert done.returncode == 0, done.stderr
    assert "as root it has more" in done.stderr
    found = content(there / "r.tar.gz")
    assert "versions.json" in found
    assert "network/address.txt" in found
    assert "permission denied" in found["CONTENTS.txt"]


def test_a_piece_that_is_too_large_is_cut_and_the_whole_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_PIECE_BYTES", 1000)
    monkeypatch.setattr(archive, "MOST_BYTES", 2500)
    made = [Piece(f"{n}.txt", lambda: "x" * 999 + "end") for n in range(4)]

    entries = write_report(tmp_path / "r.tar.gz", made, set())

    assert [each.size_bytes for each in entries] == [1000, 1000, 500, 0]
    assert content(tmp_path / "r.tar.gz")["0.txt"].endswith("end")
    assert "cut: the last 1000 of 1002 bytes" in content(tmp_path / "r.tar.gz")["CONTENTS.txt"]


def test_an_archive_that_is_there_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.tar.gz"
    path.write_text("a person's")
    assert main(["bugreport", "--file", str(path)]) == 1
    assert "File exists" in capsys.readouterr().err
    assert path.read_text() == "a person's"
