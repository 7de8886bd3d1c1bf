"""Communities: whatever is asked in whatever order, the grants say who is in which."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from limpet.base.bounds.administrators import COMMUNITIES
from limpet.cluster.api import Code, JoinRequest, join_proof, parse_token, secret_digest
from limpet.cluster.keys import public_key_of
from limpet.cluster.kinds.grant import Grant
from limpet.controller.communities import communities
from limpet.controller.communities.selectors import SelectorError, parse_selector
from limpet.controller.registry.order import order
from limpet.controller.registry.records import (
    COMMUNITY,
    NODE,
    TOKEN,
    CommunityRecord,
    TokenRecord,
)
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.rotation import rotate_key, take_keys
from limpet.controller.registry.tables import Tables
from limpet.controller.state import grants, nodes, recovery
from limpet.controller.state.authority import digest_of
from tests.effort import examples
from tests.unit.cluster_values import node_key
from tests.unit.controller.state.cluster_tables import copy, join, new_tables, new_token

NAMES = st.sampled_from(["harbour", "quarry", "yard"])
SELECTORS = st.sampled_from(["site=a", "site!=a", "site=a,tier!=b", "tier=b"])
LABELS = st.dictionaries(st.sampled_from(["site", "tier"]), st.sampled_from(["a", "b"]))


def join_with(
    tables: Tables,
    number: int,
    name: str,
    *,
    labels: dict[str, str] | None = None,
    named: tuple[str, ...] = (),
) -> Grant:
    """With a token that has these labels and communities. Raises: RefusedError."""
    token, key = new_token(tables), node_key(number)
    parsed = parse_token(token)
    record = TokenRecord(secret_digest(parsed.secret), 0.0, 1e9, ("edge",), named, labels or {})
    tables.put(TOKEN, parsed.id, record)
    request = JoinRequest(token, name, public_key_of(key), join_proof(token, name, key))
    return tables.grants[grants.join(tables, request, digest_of(tables.authority), 0.0).uid]


class _Life(RuleBasedStateMachine):
    """The grants against a model: names that were put in, selectors, labels."""

    @initialize()
    def begin(self) -> None:
        self.tables = new_tables("10.0.0.0/14")
        self.selectors: dict[str, str] = {}
        self.named: dict[str, set[str]] = {}
        """Communities by uid."""
        self.labels: dict[str, dict[str, str]] = {}
        self.numbers = 0
        self.generations: dict[str, tuple[int, tuple[str, ...], dict[str, str]]] = {}

    def expected(self, uid: str) -> tuple[str, ...]:
        chosen = {
            name
            for name, selector in self.selectors.items()
            if selector and parse_selector(selector).matches(self.labels[uid])
        }
        return tuple(sorted(self.named[uid] | chosen))

    def attempt(self, work: Any) -> bool:
        with contextlib.suppress(RefusedError):
            work()
            self.tables.commit()
            return True
        self.tables.undo(0)
        return False

    def some(self, data: Any, smallest: int = 0) -> list[str]:
        if not self.named:
            return []
        known = st.sampled_from(sorted(self.named))
        found: list[str] = data.draw(st.lists(known, min_size=smallest, max_size=3))
        return found

    @rule(labels=LABELS, named=st.sets(NAMES))
    def a_node_joins(self, labels: dict[str, str], named: set[str]) -> None:
        self.numbers += 1
        found: list[Grant] = []
        if self.numbers < 200 and self.attempt(
            lambda: found.append(
                join_with(
                    self.tables,
                    self.numbers,
                    f"n{self.numbers}",
                    labels=labels,
                    named=tuple(sorted(named)),
                )
            )
        ):
            assert named <= self.selectors.keys()
            self.named[found[0].uid] = set(named)
            self.labels[found[0].uid] = labels
        else:
            assert not named <= self.selectors.keys()

    @rule(data=st.data(), name=NAMES, selector=st.none() | SELECTORS)
    def a_community_is_made(self, data: Any, name: str, selector: str | None) -> None:
        uids = self.some(data)
        made = self.attempt(lambda: communities.create(self.tables, name, uids, selector))
        assert made is (name not in self.selectors)
        if made:
            self.selectors[name] = selector or ""
            for uid in uids:
                self.named[uid].add(name)

    @rule(data=st.data(), name=NAMES, selector=st.none() | SELECTORS)
    def more_are_added(self, data: Any, name: str, selector: str | None) -> None:
        uids = self.some(data)
        if self.attempt(lambda: communities.add(self.tables, name, uids, selector)):
            for uid in uids:
                self.named[uid].add(name)
            if selector is not None:
                self.selectors[name] = selector

    @precondition(lambda self: self.named)
    @rule(data=st.data(), name=NAMES, selector=st.booleans())
    def some_are_taken_out(self, data: Any, name: str, selector: bool) -> None:
        uids = self.some(data, smallest=1)
        if self.attempt(lambda: communities.take_out(self.tables, name, uids, selector=selector)):
            if selector:
                self.selectors[name] = ""
            for uid in uids:
                self.named[uid].discard(name)
                assert name not in self.tables.grants[uid].communities

    @rule(name=NAMES)
    def a_community_is_dissolved(self, name: str) -> None:
        if self.attempt(lambda: communities.dissolve(self.tables, name)):
            del self.selectors[name]
            for named in self.named.values():
                named.discard(name)

    @precondition(lambda self: self.named)
    @rule(data=st.data(), labels=LABELS)
    def a_node_is_labelled(self, data: Any, labels: dict[str, str]) -> None:
        uid = data.draw(st.sampled_from(sorted(self.named)))
        dropped = self.labels[uid].keys() - labels.keys()
        assert self.attempt(lambda: nodes.label(self.tables, uid, labels, dropped))
        self.labels[uid] = labels

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def a_node_is_removed(self, data: Any) -> None:
        uid = data.draw(st.sampled_from(sorted(self.named)))
        nodes.remove(self.tables, uid, 0.0)
        self.tables.commit()
        assert self.tables.grants[uid].communities == ()
        del self.named[uid], self.labels[uid], self.generations[uid]

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def a_node_is_replaced(self, data: Any) -> None:
        uid = data.draw(st.sampled_from(sorted(self.named)))
        nodes.await_replacement(self.tables, uid, wanted=True)
        self.numbers += 1
        if self.numbers < 200:
            heir = join(self.tables, self.numbers, self.tables.grants[uid].name)
            self.named[heir.uid] = self.named.pop(uid)
            self.labels[heir.uid] = self.labels.pop(uid)
            del self.generations[uid]
        self.tables.commit()

    @rule()
    def the_controller_starts_anew(self) -> None:
        self.tables = copy(self.tables)

    @invariant()
    def the_grants_say_who_is_in_which_and_only_those_that_change_are_signed(self) -> None:
        if not hasattr(self, "tables"):
            return
        assert set(self.tables.communities) == self.selectors.keys()
        for uid in self.named:
            grant = self.tables.grants[uid]
            assert grant.communities == self.expected(uid)
            now = (grant.generation, grant.communities, dict(grant.labels))
            before = self.generations.get(uid, now)
            assert (now[0] == before[0]) == (now[1:] == before[1:])
            assert now[0] >= before[0]
            self.generations[uid] = now


TestLife = _Life.TestCase
TestLife.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)


def refusal(work: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        work()
    return caught.value


def test_what_can_not_be_done_says_why_and_what_to_do() -> None:
    tables = new_tables()
    join_with(tables, 1, "crane", labels={"site": "harbour"})
    join(tables, 2, "digger")
    communities.create(tables, "harbour", [], "site=harbour")

    for work, words in [
        (lambda: communities.create(tables, "harbour", [], None), "there is one"),
        (lambda: communities.create(tables, "a b", [], None), "create community 'a b'"),
        (lambda: communities.create(tables, "new", ["ghost"], None), "node ghost: there is none"),
        (
            lambda: communities.add(tables, "harbor", ["crane"], None),
            "(did you mean harbour? there are: harbour;",
        ),
        (lambda: communities.add(tables, "harbour", ["digger", "ghost"], None), "limpet node list"),
        (
            lambda: communities.take_out(tables, "harbour", ["digger"], selector=False),
            "it is not in it",
        ),
        (
            lambda: communities.take_out(tables, "harbour", ["crane"], selector=False),
            "chosen by its labels, as site=harbour says (change them: limpet node label crane",
        ),
    ]:
        position = tables.position
        assert words in str(refusal(work))
        tables.undo(position)
    with pytest.raises(SelectorError):
        communities.add(tables, "harbour", [], "site")


def test_a_token_for_a_community_that_was_removed_lets_nobody_in() -> None:
    tables = new_tables()

    error = refusal(lambda: join_with(tables, 1, "crane", named=("harbour",)))

    assert error.refused.code is Code.BAD_TOKEN
    assert "community harbour, which was removed since" in str(error)


def test_a_node_is_in_so_many_communities_that_its_grant_stays_small() -> None:
    tables = new_tables()
    join(tables, 1, "crane")
    for number in range(COMMUNITIES.most):
        communities.create(tables, f"c{number}" + "x" * 240, ["crane"], None)

    error = refusal(lambda: communities.create(tables, "more", ["crane"], None))

    assert "64 at most" in str(error)
    assert len(tables.nodes[tables.uids_of("crane")[0]].sealed.body) < 20_000


def test_a_restored_controller_takes_up_who_is_in_which_community_from_the_nodes_grants() -> None:
    tables = new_tables()
    first = join_with(tables, 1, "crane", labels={"site": "harbour"})
    second = join(tables, 2, "digger")
    communities.create(tables, "old", ["crane"], None)
    communities.create(tables, "sites", ["crane"], "site=harbour")
    backup = copy(tables)
    communities.take_out(tables, "old", ["crane"], selector=False)
    communities.create(tables, "new", ["digger"], "site=harbour")
    held = [tables.nodes[grant.uid].sealed for grant in (first, second)]

    recovery.begin(backup, 2, 0.0, paused=False)
    recovery.absorb(backup, held, 2, 0.0)

    assert backup.grants[first.uid].communities == ("new", "sites")
    assert backup.grants[second.uid].communities == ("new",)
    assert backup.nodes[first.uid].communities == ("new", "sites")
    assert [grant.name for grant in communities.members_of(backup, "new")] == ["crane", "digger"]
    assert communities.members_of(backup, "old") == []
    communities.take_out(backup, "new", ["crane"], selector=False)
    assert backup.grants[first.uid].communities == ("sites",)
    assert backup.grants[first.uid].generation > tables.grants[first.uid].generation


def test_what_is_written_first_can_be_gone_on_from() -> None:
    """A store without transactions may stop after any change."""
    tables = new_tables()
    join(tables, 1, "crane")
    tables.commit()
    communities.create(tables, "harbour", ["crane"], None)
    created = sorted(tables.changed(), key=order)
    tables.commit()
    communities.dissolve(tables, "harbour")
    dissolved = sorted(tables.changed(), key=order)

    kinds = [
        [kind for kind, _, _ in each if kind in (COMMUNITY, NODE)] for each in (created, dissolved)
    ]
    assert kinds == [[COMMUNITY, NODE], [NODE, COMMUNITY]]


def test_of_two_machines_of_one_name_a_community_that_names_it_takes_in_the_first() -> None:
    tables = new_tables()
    tables.put(COMMUNITY, "vault", CommunityRecord(members=("edge-7",)))
    first = join(tables, 1, "edge-7", 10.0)

    second = join(tables, 2, "edge-7", 20.0)
    communities.declare(tables, "vault")

    assert tables.grants[first.uid].communities == ("vault",)
    assert tables.grants[second.uid].communities == ()
    nodes.await_replacement(tables, first.uid, wanted=True)
    heir = join(tables, 3, "edge-7", 30.0)
    communities.declare(tables, "vault")
    assert tables.grants[heir.uid].communities == ("vault",)
    assert tables.grants[second.uid].communities == ()
    nodes.remove(tables, heir.uid, 40.0)
    communities.declare(tables, "vault")
    assert tables.grants[second.uid].communities == ("vault",)


def two_machines_of_a_name() -> tuple[Tables, str, str]:
    """Their uids, in the order in which they joined; one community's object names them."""
    tables = new_tables()
    tables.put(COMMUNITY, "vault", CommunityRecord(members=("edge-7",)))
    uids = [join(tables, number, "edge-7", 10.0 * number).uid for number in (1, 2)]
    assert [tables.grants[uid].communities for uid in uids] == [("vault",), ()]
    return tables, *uids  # type: ignore[return-value]


def test_when_the_first_machine_of_a_name_is_removed_the_next_is_in_what_names_it() -> None:
    tables, first, second = two_machines_of_a_name()
    nodes.remove(tables, first, 30.0)
    assert tables.grants[second].communities == ("vault",)

    tables, first, second = two_machines_of_a_name()
    nodes.remove(tables, second, 30.0)
    assert tables.grants[first].communities == ("vault",)
    assert tables.grants[first].generation == 1


@pytest.mark.parametrize("is_rotated", [True, False])
def test_so_it_is_where_a_restored_controller_hears_of_the_removal(*, is_rotated: bool) -> None:
    tables, first, second = two_machines_of_a_name()
    backup = copy(tables)
    nodes.remove(tables, first, 30.0)
    removed = tables.nodes[first].sealed
    if is_rotated:
        rotate_key(tables, node_key(99))
    recovery.begin(backup, 2, 40.0, paused=False, former=tables.state)
    take_keys(backup, tables.authority)

    recovery.absorb(backup, [removed], 2, 50.0)

    assert backup.grants[first].tombstone
    assert backup.grants[second].communities == ("vault",)


def test_a_removal_is_heard_of_also_where_nothing_can_be_signed() -> None:
    tables, first, second = two_machines_of_a_name()
    backup = copy(tables)
    rotate_key(tables, node_key(99))
    nodes.remove(tables, first, 30.0)
    recovery.begin(backup, 2, 40.0, paused=False)

    recovery.absorb(backup, [*tables.first_documents, tables.nodes[first].sealed], 2, 50.0)

    assert backup.grants[first].tombstone
    assert backup.grants[second].communities == ()


def test_a_node_that_would_be_in_too_many_communities_then_is_no_reason_against_a_removal() -> None:
    tables, first, second = two_machines_of_a_name()
    named = tuple(f"c{number}" for number in range(COMMUNITIES.most))
    for name in named:
        communities.create(tables, name, [second])

    nodes.remove(tables, first, 30.0)

    assert tables.grants[first].tombstone
    assert tables.grants[second].communities == tuple(sorted(named))
