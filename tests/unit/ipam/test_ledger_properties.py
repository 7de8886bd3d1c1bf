"""Whatever pods, sandboxes and restarts come in whatever order, the promises hold.

The machine knows only what the ledger has answered so far, and judges each answer by it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from limpet.base.addresses import Address
from limpet.base.errors import ExhaustedError, UnavailableError
from limpet.ipam.leases import AddressState, Holder, PodKey, RangeSet, Reservation
from limpet.ipam.ledger import Ledger
from limpet.ipam.store import Tuning
from tests.effort import examples
from tests.unit.ipam.ledgers import ranges

REST_S = 10.0
TUNING = Tuning(journal_bytes=8 * 1024, settle_s=0.0, retry_s=0.05, lock_wait_s=1.0)
LOW, HIGH, SIX = ranges("10.0.0.0/29"), ranges("10.0.0.8/29", "10.0.1.0/30"), ranges("fd00::/125")
CONFIGS: Sequence[Sequence[RangeSet]] = ([LOW], [HIGH], [LOW, SIX], [LOW, HIGH], [SIX])
NOBODY = PodKey("", "", "eth0")
PODS = [PodKey("ns", f"pod-{i}", "eth0") for i in range(7)]
KEYS = [*PODS, PodKey("", "podman_pod", "eth0"), PodKey("ns", "pod-0", "net1"), NOBODY]
WANTED = [ip_address(a) for a in ("10.0.0.3", "10.0.0.10", "10.0.1.2", "fd00::5", "10.0.0.1")]


@dataclass
class Known:
    """What must be so after all answers."""

    holders: dict[Address, Holder] = field(default_factory=dict)
    kept: dict[Address, PodKey] = field(default_factory=dict)
    used: dict[Address, int] = field(default_factory=dict)
    """When each address was in use last, in steps."""
    released: dict[Address, float] = field(default_factory=dict)


def usable(config: Sequence[RangeSet]) -> list[set[Address]]:
    return [
        {
            member.subnet[i]
            for member in range_set
            for i in range(2, member.subnet.num_addresses - (member.subnet.version == 4))
        }
        for range_set in config
    ]


class LedgerMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="limpet-ledger-"))
        self.ledger = self.opened()
        self.known = Known()
        self.key_of: dict[Holder, PodKey] = {}
        self.step = 0
        self.now_s = 0.0

    def opened(self) -> Ledger:
        return Ledger.open(self.folder, "net", rest_s=REST_S, tuning=TUNING)

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.folder)

    @rule(
        key=st.sampled_from(KEYS),
        config=st.sampled_from(CONFIGS),
        wanted=st.none() | st.sampled_from(WANTED),
        again=st.booleans(),
    )
    def add(
        self, key: PodKey, config: Sequence[RangeSet], wanted: Address | None, again: bool
    ) -> None:
        self.step += 1
        living = [h for h in set(self.known.holders.values()) if self.key_of[h] == key]
        holder = Holder(f"sandbox-{self.step}", key.ifname)
        if again and living:
            holder = min(living, key=lambda h: h.container_id)
        self.key_of[holder] = key
        requested = [] if wanted is None else [wanted]
        before = self.ledger.records(now_s=self.now_s)
        try:
            given = self.ledger.reserve(holder, key, config, requested=requested, now_s=self.now_s)
        except UnavailableError:
            assert wanted is not None
            self.judge_refusal(key, holder, config, wanted)
        except ExhaustedError:
            self.judge_exhaustion(key, holder, config)
        else:
            self.judge(key, holder, config, requested, given)
            return
        assert self.ledger.records(now_s=self.now_s) == before

    def may_evict(self, address: Address, key: PodKey, holder: Holder) -> bool:
        other = self.known.holders.get(address)
        same_pod = key != NOBODY and self.known.kept.get(address) == key
        return other in (None, holder) or same_pod

    def judge_refusal(
        self, key: PodKey, holder: Holder, config: Sequence[RangeSet], wanted: Address
    ) -> None:
        outside = not any(wanted in addresses for addresses in usable(config))
        assert outside or not self.may_evict(wanted, key, holder)

    def judge_exhaustion(self, key: PodKey, holder: Holder, config: Sequence[RangeSet]) -> None:
        assert any(
            all(not self.may_evict(address, key, holder) for address in addresses)
            for addresses in usable(config)
        )

    def judge(
        self,
        key: PodKey,
        holder: Holder,
        config: Sequence[RangeSet],
        requested: list[Address],
        given: Reservation,
    ) -> None:
        known = self.known
        chosen: list[Address] = [lease.address.ip for lease in given.leases]
        losers = set()
        for lease, addresses in zip(given.leases, usable(config), strict=True):
            address: Address = lease.address.ip
            assert address in addresses
            assert lease.gateway not in addresses
            assert self.may_evict(address, key, holder)
            if known.holders.get(address, holder) != holder:
                losers.add(known.holders[address])
            mine = [
                a
                for a in sorted(addresses, key=int)
                if known.holders.get(a) == holder
                or (key != NOBODY and known.kept.get(a) == key and self.may_evict(a, key, holder))
            ]
            if any(a in addresses for a in requested):
                assert address in requested
            elif mine:
                assert address in mine
            else:
                self.judge_fresh(address, addresses - set(requested))
        assert set(given.evicted) == losers
        self.note_reservation(key, holder, config, chosen)

    def judge_fresh(self, address: Address, addresses: set[Address]) -> None:
        """As late as possible: free, else resting for longest, else kept and unused for longest."""
        known = self.known
        free = {a for a in addresses if a not in known.holders and a not in known.kept}
        rested = {a for a in free if known.released.get(a, -REST_S - 1) <= self.now_s - REST_S}
        if rested:
            assert address in rested
        elif free:
            assert known.released[address] == min(known.released[a] for a in free)
        else:
            absent = {a for a in addresses if a in known.kept and a not in known.holders}
            assert known.used[address] == min(known.used[a] for a in absent)

    def note_reservation(
        self, key: PodKey, holder: Holder, config: Sequence[RangeSet], chosen: list[Address]
    ) -> None:
        known = self.known
        versions = {address.version for address in chosen}
        for address, other in list(known.kept.items()):
            if key != NOBODY and other == key and address.version in versions:
                self.unbind(address)
        for address, other_holder in list(known.holders.items()):
            if other_holder == holder and any(address in some for some in usable(config)):
                del known.holders[address]
                self.note_free(address)
        for address in chosen:
            known.holders[address] = holder
            known.kept.pop(address, None)
            if key != NOBODY:
                known.kept[address] = key
            known.used[address] = self.step

    def unbind(self, address: Address) -> None:
        del self.known.kept[address]
        if address not in self.known.holders:
            self.note_free(address)

    def note_free(self, address: Address) -> None:
        if address not in self.known.kept:
            self.known.released[address] = self.now_s

    @precondition(lambda self: self.key_of)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Of any sandbox there ever was: living, gone or evicted."""
        self.step += 1
        holders = sorted(self.key_of, key=lambda h: h.container_id)
        holder = data.draw(st.sampled_from(holders))
        mine = {a for a, h in self.known.holders.items() if h == holder}
        assert set(self.ledger.release(holder, now_s=self.now_s)) == mine
        for address in mine:
            del self.known.holders[address]
            self.known.used[address] = self.step
            self.note_free(address)

    @precondition(lambda self: self.known.kept)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.known.kept, key=str)))
        assert self.ledger.forget(address, now_s=self.now_s) == (address,)
        self.unbind(address)

    @rule(seconds=st.sampled_from([0.0, 1.0, REST_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def restart(self) -> None:
        order = {a: b.order for a, b in self.ledger.bindings().items()}
        self.ledger.close()
        self.ledger = self.opened()
        assert self.ledger.findings == []
        assert {a: b.order for a, b in self.ledger.bindings().items()} == order
        self.known.released.clear()  # rest is not remembered: the turn goes on instead

    @rule()
    def become_durable(self) -> None:
        self.ledger.durable().result(10)

    @invariant()
    def the_ledger_says_what_it_has_answered(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.holders() == self.known.holders
        assert {a: b.key for a, b in self.ledger.bindings().items()} == self.known.kept
        for holder in set(self.known.holders.values()):
            held = {a for a, h in self.known.holders.items() if h == holder}
            assert set(self.ledger.addresses_of(holder)) == held
        live = [r for r in self.ledger.records(now_s=self.now_s) if r.state is AddressState.LIVE]
        assert len(live) == len(self.known.holders)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
