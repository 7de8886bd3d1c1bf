"""A part of a few lines gets all that the loop and uninstall have for parts."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from limpet.base.errors import KernelError
from limpet.datapath.loop import Loop
from limpet.datapath.part import Part
from limpet.datapath.teardown import remove_kernel_state
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.nftables import Nftables
from limpet.linux.owned import LinkMark, Owned
from tests.beds.namespaces import Netns, NetnsFactory
from tests.waiting import until

TABLE = "limpet_toy"
RULESET = f"""\
table inet {TABLE} {{
	chain input {{
		type filter hook input priority filter; policy accept;
		udp dport 9 drop
	}}
}}
"""


class ToyTable(Part[str, str]):
    """Keeps one nftables table."""

    name = "toy table"
    nftables = True

    def __init__(self) -> None:
        self.nft = Nftables(TABLE)

    def plan(self) -> str:
        return RULESET

    def state(self, want: str) -> str:
        return self.nft.read_ruleset(want)

    def diff(self, want: str, have: str) -> Sequence[str]:
        return [want] if want != have else []

    def apply(self, changes: Sequence[str]) -> list[str]:
        for text in changes:
            self.nft.put_table(text)
        return []

    @staticmethod
    def owned(run_dir: Path) -> Owned:
        return Owned(nft_tables=(TABLE,))


class ToyLinks(Part[frozenset[str], str]):
    """Keeps bridges of the names that it is told, and removes others of its group."""

    name = "toy links"
    groups = (1,)  # RTNLGRP_LINK
    group = 0x746F7900

    def __init__(self, route: RouteSocket) -> None:
        self.wanted = frozenset({"toy0"})
        self.route = route
        self.order: list[str] = []
        self.is_damaged = False

    def plan(self) -> frozenset[str]:
        return self.wanted

    def state(self, want: frozenset[str]) -> frozenset[str]:
        links = self.route.links().values()
        return frozenset(link.ifname for link in links if link.group == self.group)

    def diff(self, want: frozenset[str], have: frozenset[str]) -> Sequence[str]:
        return [*sorted(want - have), *(f"-{name}" for name in sorted(have - want))]

    def removes(self, change: str) -> bool:
        return change.startswith("-")

    def apply(self, changes: Sequence[str]) -> list[str]:
        failures = []
        for change in changes:
            self.order.append(f"{self.name} {change}")
            try:
                if self.removes(change):
                    link = self.route.link(change[1:])
                    assert link is not None
                    self.route.apply(link_codec.delete_link(link.ifindex, what=change))
                else:
                    self.route.apply(
                        link_codec.new_link(ifname=change, kind="bridge", group=self.group)
                    )
            except KernelError as error:
                failures.append(str(error))
        return failures

    def hear(self, message: wire.Message) -> None:
        self.is_damaged |= message.type == wire.RTM_DELLINK

    def damage(self) -> str:
        damaged, self.is_damaged = self.is_damaged, False
        return "a link is gone" if damaged and self.state(self.wanted) != self.wanted else ""

    @staticmethod
    def owned(run_dir: Path) -> Owned:
        return Owned(links=(LinkMark(group=ToyLinks.group),))


def tables(node: Netns) -> str:
    return node.run("nft", "list", "tables")


def links(node: Netns) -> str:
    return node.run("ip", "-o", "link", "show")


def test_a_toy_part_is_planned_applied_healed_taken_away_and_counted(
    make_netns: NetnsFactory,
) -> None:
    node = make_netns()
    node.run("nft", "add", "table", "inet", "anothers")
    node.ip("link add another0 type bridge")

    async def scenario() -> None:
        loop, table, route = Loop(), ToyTable(), RouteSocket()
        parts = (table, ToyLinks(route))
        for part in parts:
            loop.add(part)
        loop.start()
        loop.run("start", *parts)
        assert TABLE in tables(node)
        assert "toy0" in links(node)
        for part in parts:
            account = loop.account(part)
            assert (account.rounds, account.changes, account.failures) == (1, 1, [])

        node.run("nft", "delete", "table", "inet", TABLE)
        await until(lambda: TABLE in tables(node))
        node.ip("link delete toy0")
        await until(lambda: "toy0" in links(node))
        assert [loop.account(part).changes for part in parts] == [2, 2]

        rounds = loop.account(table).rounds
        loop.resync("timer")
        assert (loop.account(table).rounds, loop.account(table).changes) == (rounds + 1, 2)
        # Others have their turn between two parts.
        rounds_then = [
            [loop.account(part).rounds - rounds for part in parts]
            for _ in loop.resync_by_turns("timer")
        ]
        first, last = rounds_then
        assert first[0] == last[0] == 2
        assert last[1] == first[1] + 1
        loop.close()

        report = remove_kernel_state([part.owned(Path("/run")) for part in parts], {})
        assert report.failed == []
        assert f"nftables table inet {TABLE}: removed" in report.done
        assert "bridge toy0: removed" in report.done
        table.nft.close()
        route.close()

    with node.entered():
        asyncio.run(scenario())

    assert tables(node) == "table inet anothers\n"
    assert "another0" in links(node)
    assert "toy0" not in links(node)


class Blinking(ToyLinks):
    """Wants nothing; cannot read the kernel when it is asked first."""

    asked = 0

    def plan(self) -> frozenset[str]:
        return frozenset()

    def damage(self) -> str:
        self.asked += 1
        if self.asked == 1:
            raise KernelError("read", "links", errno.ENOBUFS)
        return ""


def test_a_part_that_could_not_look_when_something_was_notified_looks_soon(
    make_netns: NetnsFactory,
) -> None:
    """What it would have told others of, such as links, nobody notifies once more."""
    node = make_netns()

    async def scenario() -> None:
        loop, route = Loop(), RouteSocket()
        part = Blinking(route)
        loop.add(part)
        loop.start()
        node.ip("link add another0 type bridge")
        await until(lambda: part.asked >= 2)
        assert loop.account(part).changes == 0
        loop.close()
        route.close()

    with node.entered():
        asyncio.run(scenario())


def test_what_adds_goes_from_the_bottom_up_and_what_removes_after_it_from_the_top_down(
    make_netns: NetnsFactory,
) -> None:
    node = make_netns()

    async def scenario() -> list[str]:
        loop, route = Loop(), RouteSocket()
        below, above = ToyLinks(route), ToyLinks(route)
        above.name, above.group = "above", ToyLinks.group + 1  # type: ignore[misc]
        below.order = above.order
        above.wanted = frozenset({"toy1"})
        loop.add(below, above)
        loop.run("start", below)
        below.wanted, above.wanted = frozenset({"toy2"}), frozenset({"toy3"})
        loop.run("changed", above)
        loop.close()
        route.close()
        return above.order

    with node.entered():
        order = asyncio.run(scenario())

    assert order == [
        "toy links toy0",
        "above toy1",
        "toy links toy2",
        "above toy3",
        "above -toy1",
        "toy links -toy0",
    ]


def test_what_fails_is_tried_again_and_what_breaks_stops_nobody(make_netns: NetnsFactory) -> None:
    node = make_netns()
    node.ip("link add toy0 type bridge")  # another's, with the name that is wanted

    class Broken(ToyTable):
        name = "broken"

        def plan(self) -> str:
            raise RuntimeError("of a test")

    async def scenario() -> None:
        loop, route = Loop(), RouteSocket()
        toy, broken = ToyLinks(route), Broken()
        loop.add(toy, broken)
        loop.run("start", toy)
        assert "RuntimeError('of a test')" in loop.account(broken).failures[0]
        assert loop.account(toy).retries == 1
        assert "EEXIST" in loop.account(toy).failures[0]
        node.ip("link delete toy0")
        await until(lambda: loop.account(toy).failures == [])
        assert (loop.account(toy).retries, loop.account(toy).changes) == (0, 2)
        loop.close()
        route.close()

    with node.entered():
        asyncio.run(scenario())


def test_who_wakes_a_part_that_rests_waits_as_long_as_its_last_round_demands(
    make_netns: NetnsFactory,
) -> None:
    """What tenants change on and on takes no more than a part of a processor; what a person or a
    new pod asks for, and what another program damages, is done at once."""
    node = make_netns()

    class Resting(ToyTable):
        name = "resting"
        rests = 1_000_000
        """So that no round is short enough for the rest to be over within the test."""

    async def scenario() -> None:
        loop, resting, awake = Loop(), Resting(), ToyTable()
        loop.add(resting)
        loop.add(awake)
        loop.start()
        loop.wake(resting, "nobody knows how long it takes")
        await until(lambda: loop.account(resting).rounds == 1)

        for part in (resting, awake):
            loop.wake(part, "a tenant")
        await until(lambda: loop.account(awake).rounds == 1)
        assert loop.account(resting).rounds == 1
        loop.run("a pod", resting)
        assert loop.account(resting).rounds == 2
        loop.wake(resting, "the same", goes_on=True)
        await until(lambda: loop.account(resting).rounds == 3)
        loop.wake(resting, "a tenant")
        another = Nftables("limpet_another")
        another.run(f"delete table inet {TABLE}", what="delete the table")
        another.close()
        await until(lambda: loop.account(resting).rounds >= 4)
        assert resting.nft.read_ruleset(RULESET) == RULESET
        loop.close()
        for part in (resting, awake):
            part.nft.close()

    with node.entered():
        asyncio.run(scenario())


def test_a_part_that_is_prompt_waits_for_no_other_reason_but_behind_a_round(
    make_netns: NetnsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpet.datapath.loop._GATHER_S", 3600.0)
    node = make_netns()

    class Prompt(ToyTable):
        name = "prompt"
        prompt = True

    class Another(Prompt):
        name = "another"

    async def scenario() -> None:
        loop, patient, prompt, another = Loop(), ToyTable(), Prompt(), Another()
        for part in (patient, prompt, another):
            loop.add(part)
        loop.wake(patient, "one reason")
        loop.wake(prompt, "one reason")
        await until(lambda: loop.account(prompt).rounds == 1)
        loop.wake(prompt, "another")
        loop.wake(another, "what is due has its round no later than this")
        await until(lambda: loop.account(another).rounds == 1)
        assert loop.account(prompt).rounds == 1
        assert loop.account(patient).rounds == 0
        loop.close()
        for part in (patient, prompt, another):
            part.nft.close()

    with node.entered():
        asyncio.run(scenario())
