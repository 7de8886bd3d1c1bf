"""Tables of policies that belong to the agent's socket: who may do what with them, and when."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path

import pytest

from limpet.base.errors import KernelError
from limpet.base.ownership import NFT_POLICY_SPARE_TABLE, NFT_POLICY_TABLE
from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.part import PolicyPart
from limpet.datapath.policy.ruleset import NOTHING, LocalPort, PolicyTables, plan_tables
from limpet.datapath.teardown import remove_kernel_state
from limpet.linux.nftables import Nftables
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Selector
from limpet.policies.policy import Direction, Key, Policy, PolicyPod, PolicyWorld
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.own_tables import others_can_delete

pytestmark = pytest.mark.skipif(
    others_can_delete(), reason="before Linux 6.9 tables belong to nobody"
)
POD = PolicyPod(Key("shop", "web"), (ip_address("10.0.0.2"), ip_address("fd00::2")), {})
PORT = LocalPort(POD.key, "lim1", "02:00:00:00:00:02", "02:00:00:00:00:01", POD.addresses)


def closed(*ways: Direction) -> PolicyTables:
    policy = Policy(Key("shop", "p"), Selector(), frozenset(ways), (), ())
    world = PolicyWorld({policy.key: policy}, {}, {POD.key: POD})
    return plan_tables(compile_sides(world, [POD]), [PORT])


INGRESS, BOTH = closed("ingress"), closed("ingress", "egress")


@pytest.fixture
def node() -> Iterator[Netns]:
    make = NetnsFactory()
    try:
        made = make("node")
        with made.entered():
            yield made
    finally:
        make.close()


def tables(node: Netns) -> set[str]:
    return set(node.run("nft", "list", "tables").splitlines())


OURS = {f"table {family} {NFT_POLICY_TABLE}" for family in ("inet", "bridge")}


def test_a_second_agent_gets_them_when_the_first_one_has_ended(node: Netns) -> None:
    with closing(PolicyKernel()) as second:
        with closing(PolicyKernel()) as first:
            first.change(NOTHING, INGRESS)
            found = second.read()
            assert found == INGRESS
            assert not second.holds(found)
            for after in (INGRESS, BOTH):
                with pytest.raises(KernelError) as refused:
                    second.change(found, after)
                assert refused.value.errno == errno.EPERM
            with pytest.raises(KernelError, match="EPERM"):
                second.change(found, NOTHING)
            assert first.read() == INGRESS
            assert first.holds(INGRESS)
        assert tables(node) == OURS
        second.change(second.read(), BOTH)
        assert second.holds(BOTH)
        node.run("nft", "flush", "ruleset")
        assert second.read() == BOTH
        second.change(BOTH, NOTHING)
        assert tables(node) == set()


def test_what_others_did_to_them_while_nobody_had_them_is_put_right(node: Netns) -> None:
    hook = "{ type filter hook forward priority 0; policy accept; }"
    for damage in (
        f"add chain inet {NFT_POLICY_TABLE} theirs {hook}",
        f"flush table inet {NFT_POLICY_TABLE}",
        f"delete table bridge {NFT_POLICY_TABLE}; add table bridge {NFT_POLICY_TABLE}",
        f"insert rule inet {NFT_POLICY_TABLE} forward accept",
        f"add table inet {NFT_POLICY_SPARE_TABLE}",  # as of one that was killed amid it
        f"add counter inet {NFT_POLICY_TABLE} theirs",
        "flush ruleset",
    ):
        with closing(PolicyKernel()) as first:
            first.change(first.read(), BOTH)
        node.run("nft", damage)
        with closing(PolicyKernel()) as second:
            found = second.read()
            assert found != BOTH or not second.holds(BOTH), damage
            second.change(found, BOTH)
            assert second.read() == BOTH, damage
            assert second.holds(BOTH)
            assert tables(node) == OURS


def test_they_go_with_an_uninstallation_once_the_agent_has_ended(node: Netns) -> None:
    owners = [PolicyPart.owned(Path("/run"))]
    with closing(PolicyKernel()) as kernel:
        kernel.change(NOTHING, BOTH)
        assert len(remove_kernel_state(owners, {}).failed) == 2
        assert kernel.read() == BOTH
    report = remove_kernel_state(owners, {})
    assert (len(report.done), report.failed) == (2, [])
    assert tables(node) == set()


def test_they_stay_ours_when_libnftables_begins_anew(node: Netns) -> None:
    """It does so behind each large command, with another socket of its own."""
    many = ", ".join(f"10.{n >> 8}.{n & 255}.1" for n in range(9000))
    with closing(PolicyKernel()) as kernel:
        kernel.change(NOTHING, INGRESS)
        nft = kernel._inet
        assert isinstance(nft, Nftables)
        for _ in range(3):
            at = f"inet {NFT_POLICY_TABLE}"
            nft.run(
                f"add set {at} s {{ type ipv4_addr; }}\nadd element {at} s {{ {many} }}", what="s"
            )
            nft.run(f"delete set {at} s", what="s")
        assert kernel.read() == INGRESS
        kernel.change(INGRESS, BOTH)
        assert kernel.holds(BOTH)
    assert tables(node) == OURS
