"""Policies twice in the kernel, where a table that belongs to a socket ends with it: so it is from
Linux 5.12 to 6.8, as which this one is taken here. `make test-vm` asks Debian's 6.1 itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from limpet.base.ownership import NFT_POLICY_SPARE_TABLE, NFT_POLICY_TABLE
from limpet.base.process.lifetime import KeptDescriptors
from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.ruleset import NOTHING
from limpet.datapath.policy.table import Table, read_listing
from limpet.linux.netlink.table_codec import OWNED
from limpet.linux.nftables import Nftables
from limpet.policies.policy import PolicyWorld
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.policies.policy_bed import PolicyBed
from tests.policy_cases import app, world_of

OURS, TWINS = (
    {f"table {family} {name}" for family in ("inet", "bridge")}
    for name in (NFT_POLICY_TABLE, NFT_POLICY_SPARE_TABLE)
)
MANY = 6_000
"""Addresses that go into a set without libnftables."""
FOREIGN = (
    "flush ruleset",
    f"delete table inet {NFT_POLICY_TABLE}",
    f"delete table bridge {NFT_POLICY_TABLE}",
    f"insert rule inet {NFT_POLICY_TABLE} forward accept",
)
"""One that is flushed drops without counting, which `faults/test_killed_policies.py` has."""


@pytest.fixture
def bed() -> Iterator[PolicyBed]:
    make = NetnsFactory()
    try:
        with closing(PolicyBed(make, 3, flags=OWNED)) as made:
            yield made
    finally:
        make.close()


def world(port: int = 80, blocks: int = 0) -> PolicyWorld:
    """Pod 0 is reached by pod 2 alone, at one port; pod 1 reaches nobody, but for the blocks."""
    cidrs = [f"{32 + n // 65536}.{n // 256 % 256}.{n % 256}.1/32" for n in range(0, 2 * blocks, 2)]
    specs: list[dict[str, Any]] = [
        {
            "podSelector": app(0),
            "ingress": [{"from": [{"podSelector": app(2)}], "ports": [{"port": port}]}],
        },
        {
            "podSelector": app(1),
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"ipBlock": {"cidr": each}} for each in cidrs]}] if cidrs else [],
        },
    ]
    return world_of(3, *specs)


def tables(node: Netns) -> set[str]:
    listed = node.run("nft", "list", "tables").splitlines()
    return {each for each in listed if NFT_POLICY_TABLE in each}


def holds(bed: PolicyBed) -> bool:
    with bed.node.entered():
        return bed.kernel.holds(bed.tables)


def are_alike(bed: PolicyBed) -> bool:
    """Whether the twins have the rules and elements of the others, as one who put neither lists
    them."""
    with bed.node.entered():
        ours, twins = (
            [listed(family, name) for family in ("inet", "bridge")]
            for name in (NFT_POLICY_TABLE, NFT_POLICY_SPARE_TABLE)
        )
    return ours == twins and bool(ours[0])


def listed(family: str, name: str) -> Table:
    with closing(Nftables(name, family=family)) as nft:
        return read_listing(family, NFT_POLICY_TABLE, *nft.read_table())


@pytest.mark.parametrize("words", FOREIGN)
@pytest.mark.parametrize("blocks", [0, MANY])
def test_whatever_others_delete_no_packet_passes_that_may_not(
    bed: PolicyBed, words: str, blocks: int
) -> None:
    bed.enforce(world(blocks=blocks))
    assert tables(bed.node) == OURS | TWINS
    bed.node.run("nft", words)
    assert tables(bed.node) >= TWINS
    for version in (4, 6):
        assert not bed.passes(1, 0, version, "TCP", 80)
        assert not bed.passes(2, 0, version, "TCP", 81)
        assert not bed.passes(-1, 0, version, "UDP", 80)
        assert not bed.passes(1, -1, version, "TCP", 80)
    found = bed.read()
    assert found != bed.tables
    with bed.node.entered():
        bed.kernel.change(found, bed.tables)
    assert bed.read() == bed.tables
    assert holds(bed)
    assert are_alike(bed)
    assert bed.passes(2, 0, 4, "TCP", 80)


@pytest.mark.parametrize("verb", ["delete", "flush"])
def test_nobody_else_changes_the_twins(bed: PolicyBed, verb: str) -> None:
    bed.enforce(world())
    for family in ("inet", "bridge"):
        with pytest.raises(AssertionError, match="Operation not permitted"):
            bed.node.run("nft", f"{verb} table {family} {NFT_POLICY_SPARE_TABLE}")
    assert holds(bed)


def test_they_follow_by_difference(bed: PolicyBed) -> None:
    for port, blocks in ((80, 0), (81, MANY), (82, 2 * MANY), (82, 10), (80, MANY)):
        bed.enforce(world(port, blocks))
        assert holds(bed)
        assert are_alike(bed)
        assert bed.passes(2, 0, 4, "TCP", port)
        assert not bed.passes(2, 0, 4, "TCP", 79)
    assert not bed.kernel.put_whole
    with bed.node.entered():
        bed.kernel.change(bed.tables, NOTHING)
    assert tables(bed.node) == set()
    bed.tables = NOTHING
    bed.enforce(world())
    assert holds(bed)
    assert are_alike(bed)


def test_they_end_with_the_agent_and_the_next_one_has_its_own(bed: PolicyBed) -> None:
    """What it has left in the kernel holds pods meanwhile, whatever is there of twins."""
    planned = bed.enforce(world(blocks=MANY))
    for damage in ("", f"add table inet {NFT_POLICY_SPARE_TABLE}", "flush ruleset"):
        with agent_away(bed):
            assert tables(bed.node) == OURS
            assert not bed.passes(1, 0, 4, "TCP", 80)
            if damage:
                bed.node.run("nft", damage)
        with bed.node.entered():
            found = bed.kernel.read()
            assert not bed.kernel.holds(planned)
            bed.kernel.change(found, planned)
        assert tables(bed.node) == OURS | TWINS
        assert are_alike(bed)
        assert holds(bed)
        assert not bed.passes(1, 0, 4, "TCP", 80)


@contextmanager
def agent_away(bed: PolicyBed) -> Iterator[None]:
    """Another one, to which no table belongs, reads what is dropped; then the next agent begins."""
    bed.kernel.close()
    with bed.node.entered():
        bed.kernel = PolicyKernel(flags=0)
    try:
        yield
    finally:
        bed.kernel.close()
        with bed.node.entered():
            bed.kernel = PolicyKernel(flags=OWNED)


def test_twins_outlive_an_agent_whose_socket_a_service_manager_keeps(
    bed: PolicyBed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They hold pods while the agent is dead and somebody deletes the others; the next one has them
    for its own."""
    keeping = KeptDescriptors()
    monkeypatch.setattr("limpet.datapath.policy.apply.KEPT_DESCRIPTORS", keeping)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody-hears-it"))
    with ExitStack() as undo:
        bed.kernel.close()
        renew(bed)
        kept = keeping.find("policies")
        assert kept is not None
        undo.callback(os.close, kept)
        bed.enforce(world())
        bed.kernel.close()  # it is dead, and a copy of its socket is elsewhere

        bed.node.run("nft", "flush ruleset")
        delete = f"nft delete table inet {NFT_POLICY_SPARE_TABLE} 2>&1 || true"
        refused = bed.node.run("sh", "-c", delete)
        left = tables(bed.node)
        renew(bed)
        assert "Operation not permitted" in refused
        assert left == TWINS
        assert keeping.find("policies") == kept
        bed.tables = bed.read()
        bed.enforce(world(port=81))
        assert tables(bed.node) == OURS | TWINS
        assert are_alike(bed)
        for version in (4, 6):
            assert bed.passes(2, 0, version, "TCP", 81)
            assert not bed.passes(2, 0, version, "TCP", 80)


def renew(bed: PolicyBed) -> None:
    """Another agent's kernel in place of the bed's, which is closed."""
    with bed.node.entered():
        bed.kernel = PolicyKernel(flags=OWNED)
