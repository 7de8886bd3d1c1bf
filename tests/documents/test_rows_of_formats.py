"""Each file and socket of Limpet has a row in docs/formats.md, or a reason why there is none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.unit.test_house import CHECKOUT, modules, nodes_of

TEXTS = CHECKOUT / "docs"
SUFFIXES = "json|jsonl|log|db|journal|sock|pem|key|lock|conf|conflist|toml|gz|tar"
NAME = re.compile(rf"(?:[^ ]*/)?(\w[\w.*-]*\.(?:{SUFFIXES}))\*?")
WITHOUT = {
    "written by people, and read by many versions": {"agent.toml", "controller.toml", "shim.conf"},
    "certificates and keys, whose formats are others'": {
        *("ca.pem", "node.pem", "node.key", "node.key.pem", "page.key"),
    },
    "nothing is in it": {"agent.lock", "controller.lock"},
    "its format is that of the program that reads or writes it": {
        *("10-limpet.conflist", "99-sysctl.conf", "sysctl.conf", "limpet.conf", "resolv.conf"),
        *("config.toml", "containers.conf", "crio.conf", "kubelet.json", "strongswan.conf"),
        *("config.v2.json", "hostconfig.json", "charon.log", "vici.sock", "wireguard.log"),
        *("NetworkManager.conf", "networkd.conf", "limwg*.sock"),
    },
    "for people, and read by no Limpet": {"harbour.tar", "limpet-bugreport.tar.gz"},
    "answered to the page that the same process has sent": {"map.json"},
}
PIECES = "limpet.cli.bugreport.pieces"
"""Names what is in a bug report, for people."""
LAB = "limpet.lab"
"""Worlds end with the version that has made them."""


def names_in_the_source() -> Iterator[str]:
    for name, module in modules().items():
        if name == PIECES or name.startswith(LAB):
            continue
        texts = {id(each.value) for each in nodes_of(module) if isinstance(each, ast.Expr)}
        for each in nodes_of(module):
            if (
                isinstance(each, ast.Constant)
                and isinstance(each.value, str)
                and id(each) not in texts
                and (found := NAME.fullmatch(each.value))
            ):
                yield found[1]


def names_in_the_table() -> Iterator[str]:
    """Those that docs/files.md has by name."""
    for row in re.findall(r"^\| `([^`]+)` \|", (TEXTS / "files.md").read_text(), re.MULTILINE):
        if (found := NAME.fullmatch(row)) and not found[1].startswith("*"):
            yield found[1]


def without_a_row(names: set[str]) -> set[str]:
    rows = set(re.findall(r"`([\w.-]+)`", (TEXTS / "formats.md").read_text()))
    return names - rows - set().union(*WITHOUT.values())


def test_every_file_has_a_row_or_a_reason() -> None:
    names = {*names_in_the_source(), *names_in_the_table()}
    assert {"snapshot.log", "here.json", "dns.sock", "controller.db"} <= names
    assert without_a_row(names) == set()
    assert without_a_row({"new.json"}) == {"new.json"}
    assert set().union(*WITHOUT.values()) <= names, "a reason for what is there no more"


COMPUTED = {
    "limpet.cli.commands.diagnosis.bugreport": "for people, and read by no Limpet",
    "limpet.cli.usage.schemas": "of docs/reference, for people",
    "limpet.datapath.node.pod.attachments": "`datapath/node/pod/attachment_codec.py`",
    "limpet.datapath.tunnel.wireguard.process": "wireguard-go's socket",
    "limpet.web.access.certificate": "a certificate and its key, whose formats are others'",
}
"""Modules where the end of a name alone is written: what docs/formats.md calls it, or why not."""


def test_no_file_has_a_computed_name_without_a_row() -> None:
    found = {
        name
        for name, module in modules().items()
        if not name.startswith(LAB)
        for each in nodes_of(module)
        if isinstance(each, ast.JoinedStr)
        and isinstance(end := each.values[-1], ast.Constant)
        and re.search(rf"\.({SUFFIXES})$", str(end.value))
    }
    assert found == COMPUTED.keys()
    formats = (TEXTS / "formats.md").read_text()
    assert all(row in formats for row in COMPUTED.values() if row.startswith("`"))
