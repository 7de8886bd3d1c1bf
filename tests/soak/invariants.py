"""What must be true whenever a storm is over: compared with what was acknowledged."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_network

from limpet.lab.measure.matrix import MeasuredEnd, measure_until
from limpet.lab.world.world import World
from tests.lab.rungs import WITHIN_S
from tests.lab.storms.chaos import Chaos, until_empty
from tests.lab.storms.leftovers import leaks
from tests.soak.cloud import Guests, Person
from tests.soak.pods import Pods
from tests.soak.talk import Talk

NOTHING_LOST = "acknowledged changes that are there"
NOT_TWICE = "addresses and segments that one holds"
PAIRS = "pairs that are back"
NOTHING_LEFT = "nodes where nothing is left over"
NO_COMPLAINT = "logs without a complaint"


class Invariants:
    """Raises AssertionError with what is wrong, and counts what it has compared."""

    def __init__(
        self,
        world: World,
        load: tuple[Sequence[Pods], Person, Guests, Talk],
        chance: random.Random,
    ) -> None:
        self.compared: Counter[str] = Counter()
        """By invariant: how many things."""
        self.longest_back_s = 0.0
        """Until every pair was back after a storm."""
        self._world = world
        self._pods, self._person, self._guests, self._talk = load
        self._chance = chance
        self._chaos = Chaos(world, chance, ())

    def check(self) -> None:
        self._pairs_are_back()
        until_empty(self._lost_by_nodes, within_s=WITHIN_S)
        self._cloud_keeps()
        self._nothing_twice()
        until_empty(self._chaos.told_wrong, within_s=WITHIN_S)
        self._chaos.check_identities()
        complaints = self._chaos.complaints()
        assert not complaints, "\n".join(complaints)
        self.compared[NO_COMPLAINT] += len(self._world.machines) + 1

    def check_leftovers(self) -> None:
        """Now and then: it asks the kernel a lot."""
        for machine in self._world.machines.values():
            until_empty(partial(leaks, self._world, machine), within_s=WITHIN_S)
            self.compared[NOTHING_LEFT] += 1

    def _pairs_are_back(self) -> None:
        back_s = self._talk.until_all_are_heard()
        self.longest_back_s = max(self.longest_back_s, back_s)
        self.compared[PAIRS] += len(self._talk.pairs)
        places = [
            MeasuredEnd(
                pods.machine.label, pods.machine.name, tuple(pods.machine.overlay_addresses())
            )
            for pods in self._pods
        ]
        for pods in self._pods:
            if pods.attached:
                pod = self._chance.choice(pods.attached).pod
                addresses = tuple(each.ip for each in pod.addresses)
                places.append(MeasuredEnd(pod.name, pod.netns, addresses))
        matrix = measure_until(places, within_s=WITHIN_S)
        assert not matrix.failures, matrix.failures
        self.compared[PAIRS] += matrix.count

    def _lost_by_nodes(self) -> list[str]:
        """What a node has acknowledged of its pods, and its record says otherwise."""
        wrong, same = [], 0
        for pods in self._pods:
            records = pods.machine.ask("ipam.list")["records"]
            said = {each["address"]: (each["pod"], each["state"] == "live") for each in records}
            for slot in pods.slots:
                right = slot.pod.name, slot.attached
                wrong += [
                    f"{pods.machine.label}: {address} is {said.get(address)} in place of {right}"
                    for address in slot.addresses
                    if said.get(address) != right
                ]
                same += len(slot.addresses)
            given = {str(a.ip) for pod in pods.machine.pods.values() for a in pod.addresses}
            live = {address for address, (_, is_live) in said.items() if is_live}
            wrong += [f"{pods.machine.label}: {each} is nobody's" for each in live - given]
        if not wrong:
            self.compared[NOTHING_LOST] += same
        return wrong

    def _cloud_keeps(self) -> None:
        ask, person, guests = self._world.controller.ask, self._person, self._guests
        nodes = {each["uid"]: each for each in ask("node.list")["nodes"]}
        by_name = {each["name"]: each for each in nodes.values()}
        labels = {name: by_name[name]["labels"].get("turn") for name in person.labels}
        assert labels == person.labels
        communities = {each["name"] for each in ask("community.list")["communities"]}
        assert communities == person.communities
        for node in guests.known:
            segments = {str(each) for sealed in node.grants for each in node.open(sealed).segments}
            assert segments <= set(nodes[node.uid]["segments"]), node.name
            assert nodes[node.uid]["state"] == "granted", node.name
            assert nodes[node.uid]["presence_sequence"] == node.sequence, node.name
        removed = {uid for uid, each in nodes.items() if each["state"] == "removed"}
        assert removed == guests.removed
        self.compared[NOTHING_LOST] += len(labels) + len(communities)
        self.compared[NOTHING_LOST] += len(guests.known) + len(removed)

    def _nothing_twice(self) -> None:
        held = [
            (address, machine.label)
            for machine in self._world.machines.values()
            for address in {
                each["address"]
                for each in machine.ask("ipam.list")["records"]
                if each["state"] in ("live", "bound")
            }
        ]
        twice = [address for address, count in Counter(a for a, _ in held).items() if count > 1]
        assert not twice, [each for each in held if each[0] in twice]
        segments = [
            (ip_network(segment), each["name"])
            for each in self._world.controller.ask("node.list")["nodes"]
            for segment in each["segments"]
            if each["state"] != "removed"
        ]
        for (one, holder), (other, another) in itertools.combinations(segments, 2):
            assert one.version != other.version or not one.overlaps(other), (
                f"{holder} has {one} and {another} has {other}"
            )
        self.compared[NOT_TWICE] += len(held) + len(segments)
