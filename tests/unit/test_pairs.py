"""Folders that import each other, below the rooms: each pair is known, and none comes unseen."""

from __future__ import annotations

from pathlib import Path

from tests.unit.test_house import SOURCE, imports_of, modules

PAIRS = {
    ("agent", "agent.answers"),
    ("agent", "agent.answers.picture"),
    ("agent", "agent.figures"),
    ("agent", "agent.happenings"),
    ("agent", "agent.names"),
    ("agent", "agent.policies"),
    ("agent.answers", "agent.answers.picture"),
    ("cli", "cli.usage"),
    ("cli.doctor", "cli.doctor.cluster"),
    ("cli.doctor", "cli.doctor.firewall"),
    ("cli.doctor", "cli.doctor.installed"),
    ("cli.doctor", "cli.doctor.machine"),
    ("cli.doctor", "cli.doctor.names"),
    ("cli.doctor", "cli.doctor.pods"),
    ("cli.doctor", "cli.install"),
    ("cli.doctor.cluster", "cli.install"),
    ("cli.install", "cli.install.flannel"),
    ("cli.install", "cli.install.units"),
    ("cloud", "cloud.second_road"),
    ("cluster", "cluster.exchange"),
    ("cluster", "cluster.kinds"),
    ("cluster", "cluster.snapshot"),
    ("cluster", "cluster.topology"),
    ("cluster.datagrams", "cluster.exchange"),
    ("controller", "controller.orchestrator"),
    ("controller", "controller.state"),
    ("controller.api", "controller.state"),
    ("controller.communities", "controller.state"),
    ("controller.orchestrator", "controller.orchestrator.node_keeper"),
    ("controller.orchestrator.node_keeper", "controller.state"),
    ("controller.picture", "controller.state"),
    ("datapath.node", "datapath.node.pod"),
    ("datapath.node.pod", "datapath.node.ports"),
    ("datapath.services", "datapath.services.sockets"),
    ("datapath.tunnel", "datapath.tunnel.ipsec"),
    ("datapath.tunnel", "datapath.tunnel.wireguard"),
    ("dns", "dns.forward"),
    ("lab", "lab.measure"),
    ("lab", "lab.needs"),
    ("lab", "lab.world"),
    ("lab.kube", "lab.needs"),
    ("lab.kube", "lab.world"),
    ("lab.measure", "lab.world"),
    ("lab.needs", "lab.world"),
    ("paths.ladder", "paths.probe"),
}
"""A module at the top of a folder puts together what is below (`main`, `wiring`, `doctor.doctor`,
`tunnel.setup`), and that takes values beside the top; or two nouns need a value of each other. No
circle of modules comes of it, which tests/unit/test_house.py holds."""


def folder_of(module: str) -> str:
    """As it is named below `limpet`."""
    parts = module.split(".")
    is_folder = (SOURCE.parent / Path(*parts)).is_dir()
    return ".".join(parts[1:] if is_folder else parts[1:-1])


def pairs(imports: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Of folders, in the order of the alphabet."""
    return {(one, other) for one, other in imports if one < other and (other, one) in imports}


def test_a_folder_and_another_import_each_other_only_where_it_is_known() -> None:
    imports = {
        (folder_of(name), folder_of(other)) for name in modules() for other in imports_of(name)
    }

    assert pairs(imports) == PAIRS


def test_a_pair_is_found_by_both_its_imports() -> None:
    assert pairs({("a", "b"), ("b", "a"), ("b", "c"), ("c", "c")}) == {("a", "b")}
