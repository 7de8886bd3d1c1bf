"""The part that holds a node's pods to their policies, round by round."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from limpet.base.ownership import NFT_POLICY_TABLE
from limpet.datapath.loop import Loop
from limpet.datapath.policy.part import PolicyPart
from limpet.linux.conntrack import forget_those
from limpet.policies.compiler import compile_sides
from limpet.policies.labels import Selector
from limpet.policies.policy import Key, Policy, PolicyPod, PolicyWorld
from tests.beds.namespaces import NetnsFactory
from tests.beds.policies.policy_bed import PolicyBed


@contextmanager
def no_more_files() -> Iterator[None]:
    """Whatever this process wants to open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_are_judged_in_the_next_round_when_they_could_not_be_in_this() -> None:
    make = NetnsFactory()
    bed = PolicyBed(make, 2)
    try:
        segment = bed.bed.pods["p0"].attachment.addresses
        pod = PolicyPod(Key("shop", "p0"), tuple(each.ip for each in segment), {})
        closed = Policy(Key("shop", "closed"), Selector(), frozenset({"ingress"}), (), ())
        world = PolicyWorld({closed.key: closed}, {}, {pod.key: pod})
        with bed.node.entered(), ExitStack() as held:
            loop = Loop()
            held.callback(loop.close)

            def begin() -> PolicyPart:
                return PolicyPart(
                    loop, lambda: bed.ports([pod]), lambda _: compile_sides(world, [pod])
                )

            with closing(begin()) as part:
                want = part.plan()
                assert part.apply(part.diff(want, part.state(want))) == []
                assert part.diff(want, part.state(want)) == []

            for family in ("inet", "bridge"):
                bed.node.run("nft", "delete", "table", family, NFT_POLICY_TABLE)
            chain = (
                "add table ip other; add chain ip other x { type filter hook forward priority 0; }"
            )
            bed.node.run("nft", f"{chain}; add rule ip other x ct state new counter")
            assert bed.passes(-1, 0, 4, "UDP", 53)
            part = begin()
            held.callback(part.close)
            want = part.plan()
            changes = part.diff(want, part.state(want))
            assert changes
            with no_more_files():
                failures = part.apply(changes)
            assert failures == ["open a netlink socket: EMFILE"]

            part.resync()
            assert part.apply(part.diff(want, part.state(want))) == []
            assert forget_those(pod.addresses, lambda flow: flow.port == 53) == 0, "it goes on"
            assert part.diff(want, part.state(want)) == []
    finally:
        bed.close()
        make.close()
