"""What contracts of imports do not see: a module that is not in one, a name that gets by."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator

from limpet.cluster.kinds import KINDS
from tests.unit.test_faces import face_of, folders, imported_by, is_within, meant, named_in
from tests.unit.test_house import CHECKOUT, modules, nodes_of

PURE = "states, plans, diffs and codecs do no I/O and get time and randomness passed in"
PURE_BY_NAME = re.compile(r"(^|_)(plan|diff|states?|codec|ruleset)$")
NOT_PURE = {
    "limpet.agent.node_state": "keeps the value of `base.node_state`, and logs what is new in it",
    "limpet.controller.state": "a room: the cluster's records, and what may be done to them",
}
SAID_PURE = re.compile(r"((?:`[^`]+`(?:, | and )?)+)[^`;.)]*\bpure\b", re.IGNORECASE)
"""What the `__init__` of a folder calls pure: the names in front of the word."""
GENERIC = "what seals, merges, keeps, tells and stores documents names no kind of them"
OF_DOCUMENTS = {"limpet.cluster", "limpet.controller.api", "limpet.controller.store"}
BESIDE = {"limpet.cluster.kinds", "limpet.cluster.topology", "limpet.cluster.segments"}
"""What the kinds are, and what is made of their values."""
NAMES_KINDS = {
    "limpet.cluster.membership": "the typed face of a replica: seals what this node says itself",
    "limpet.cluster.nodes": "the typed view: the network, and grant with presence by uid",
    "limpet.controller.api.node_requests": "joining and segments are answered with a grant",
    "limpet.controller.store.kubernetes.community_row": "a community says which tunnels it has",
    "limpet.controller.store.kubernetes.document_row": "a kind has a custom resource of its shape",
    "limpet.controller.store.kubernetes.items": "objects of a node are found by its uid",
    "limpet.controller.store.kubernetes.rows": "the table of kinds and custom resources",
    "limpet.controller.store.kubernetes.store": "a removed node's grant is copied before it goes",
}
PORTS = "limpet.datapath.node.ports"


def sources_of(contract: str) -> set[str]:
    text = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    (found,) = (each["source_modules"] for each in contracts if each["name"] == contract)
    return set(found)


def test_what_is_called_a_plan_a_diff_a_state_a_codec_or_a_ruleset_is_held_to_be_pure() -> None:
    pure = sources_of(PURE)
    named = {name for name in modules() if PURE_BY_NAME.search(name.rpartition(".")[2])}

    assert {name for name in named if not is_within(name, pure)} == NOT_PURE.keys()


def test_what_an_init_calls_pure_is_held_to_be() -> None:
    pure = sources_of(PURE)
    said = {
        meant(name, folder)
        for folder in folders()
        for names in SAID_PURE.findall(face_of(folder))
        for name in named_in(names)
    }

    assert len(said) > 50
    assert {name for name in said if not is_within(name, pure)} == set()


def test_what_handles_documents_names_no_kind_or_is_known_to() -> None:
    generic = sources_of(GENERIC)
    handles = {
        name
        for name in modules()
        if is_within(name, OF_DOCUMENTS)
        and not is_within(name, BESIDE)
        and modules()[name].body[1:]
    }

    assert {name for name in handles if not is_within(name, generic)} == NAMES_KINDS.keys()


def test_no_kind_is_named_by_way_of_the_registry_or_as_a_text() -> None:
    """`from limpet.cluster.kinds import GRANT` and `"grant"` pass the contract."""
    found = {
        f"{name}: {kind}"
        for name in modules()
        if is_within(name, sources_of(GENERIC))
        for kind in kinds_named(modules()[name])
    }

    assert not found, "\n".join(sorted(found))


def kinds_named(module: ast.Module) -> Iterator[str]:
    for node in nodes_of(module):
        match node:
            case ast.ImportFrom(module="limpet.cluster.kinds", names=names):
                yield from (each.name for each in names if each.name not in ("KINDS", "fields"))
            case ast.ImportFrom(module="limpet.controller.registry.records", names=names):
                yield from (each.name for each in names if each.name in ("NODE", "PRESENCE"))
            case ast.ImportFrom(module="limpet.cluster", names=names):
                yield from (each.name for each in names if each.name == "kinds")
            case ast.Constant(str(text)) if text in {kind.name for kind in KINDS}:
                yield repr(text)


def test_a_kind_is_found_however_it_is_named() -> None:
    source = """
from limpet.cluster.kinds import GRANT, KINDS
from limpet.controller.registry.records import NODE
from limpet.cluster import kinds
kind = "presence"
"""
    assert list(kinds_named(ast.parse(source))) == ["GRANT", "NODE", "kinds", "'presence'"]


def test_port_security_and_the_part_for_pods_meet_at_the_pod_alone() -> None:
    """`ports` is a part of its own in the folder of another one: both need what a pod is, and a
    pod gets no interface before port security holds it."""
    node = {name for name in modules() if is_within(name, {"limpet.datapath.node"})}
    ports = {name for name in node if is_within(name, {PORTS})}

    of_ports = {other for name in ports for other in imported_by(name) & (node - ports)}
    of_node = {(name, other) for name in node - ports for other in imported_by(name) & ports}

    assert of_ports == {"limpet.datapath.node.pod.attachment"}
    assert of_node == {("limpet.datapath.node.pod.guards", f"{PORTS}.part")}
