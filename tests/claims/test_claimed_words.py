"""What a member tells of others' pods and in others' names: real agents, and where packets go then.

The claimant is a real member whose agent is stopped: what it says is signed by its own key, and its
pod stands ready to take what comes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import TypeVar

import pytest

from limpet.base.bounds.members import SEQUENCE
from limpet.cluster.datagrams.peer_datagram import BodyKind as Datagram
from limpet.cluster.datagrams.peer_datagram import Codec
from limpet.cluster.documents import Kind, Sealed
from limpet.cluster.exchange.messages import Push, encode
from limpet.cluster.identity import Identity, load_identity
from limpet.cluster.kinds import ABSENCE, PODS, PRESENCE
from limpet.cluster.kinds.absence import Absence
from limpet.cluster.kinds.pods import PARTS, LabelledPod, LabelledPods
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.seal import seal
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod, pings
from limpet.lab.world.world import World
from limpet.services.values import Endpoint, EndpointPort, EndpointSlice
from tests.claims.claims_bed import counting
from tests.lab.bed import a_world, echoing
from tests.lab.forging import send_datagram
from tests.lab.policies_of_all_nodes import POLICY, asked, label, passes, until_judged
from tests.lab.rungs import the_pod
from tests.lab.services import (
    TARGET_PORT,
    Connecting,
    endpoints,
    ipv4,
    serving_all,
    tell,
    web,
)
from tests.waiting import wait_until

# Addresses of its own, as other worlds on this machine have pods too, of which a look at all
# namespaces would say that they are there.
TOPOLOGY = """
[controller]
pod_cidrs = ["10.249.0.0/16", "fd00:249::/48"]
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.lan]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { watcher = 1, guard = 1, victim = 1, claimant = 1 }
"""
GHOSTS = "shop/ghosts"
"""A Service with an endpoint of the claimant that nobody has: once the watcher takes that one for
gone it has heard what the claimant said."""
PORT = 7471
"""Of each node's exchange."""
_NOBODY = ip_address("192.168.10.250")
"""On the link, and no host's: a packet to it says that a claim was taken up."""
_LATE = 1 << 30
"""A sequence that is higher than what any agent here has said of itself."""

T = TypeVar("T")


class Claimed:
    """The nodes by what they are in it, each with one pod; the claimant's agent does not run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.watcher = world.machine("watcher")
        """Uses a Service of the victim's pod and of the claimant's."""
        self.guard = world.machine("guard")
        """Lets in pods with the label of a client: the victim's is one, the watcher's is none."""
        self.victim = world.machine("victim")
        self.claimant = world.machine("claimant")
        self.sequences = itertools.count(_LATE)

    def sign(self, kind: Kind[T], value: T) -> Sealed:
        """By the claimant's key, whomever it speaks of."""
        return seal(kind, value, identity_of(self.claimant).private_key).sealed

    def say(self, to: Machine, *documents: Sealed) -> None:
        """The claimant tells this from its node."""
        identity = identity_of(self.claimant)
        codec = Codec(identity.private_key, identity.pinned_key)
        body = encode(Push(documents))
        data = codec.encode(Datagram.EXCHANGE, body, to_uid=identity_of(to).uid)
        for address in to.addresses:
            send_datagram(self.claimant.name, address.ip, PORT, data)

    def say_to_guard(self, *documents: Sealed, of_others: Iterable[LabelledPod] = ()) -> None:
        """This, and then whether its own pod is a client, which it may say: the guard has heard it
        all when it believes that."""
        own, sequence = the_pod(self.claimant), next(self.sequences)
        is_client = bool((sequence - _LATE) % 2 == 0)
        labels = {"app": "client" if is_client else "other"}
        told = LabelledPod(own.namespace, own.name, addresses_of(own), labels)
        uid = identity_of(self.claimant).uid
        last = LabelledPods(uid, 0, sequence, (*of_others, told))
        self.say(self.guard, *documents, self.sign(PODS, last))
        until_judged(self.guard, own, the_pod(self.guard), [True, is_client] * 2)


def identity_of(machine: Machine) -> Identity:
    found = load_identity(machine.disk / "state" / "cluster")
    assert found is not None
    return found


def addresses_of(pod: LabPod) -> tuple[str, ...]:
    return tuple(str(each.ip) for each in pod.addresses)


@pytest.fixture(scope="module")
def claimed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Claimed]:
    folder = tmp_path_factory.mktemp("claimed")
    with a_world(TOPOLOGY, folder) as world:
        found = Claimed(world)
        file = folder / "web.toml"
        file.write_text(POLICY)
        label(found.guard, app="web")
        label(found.victim, app="client")
        asked(world, "policy", "apply", str(file))
        web_pod = the_pod(found.guard)
        until_judged(found.guard, the_pod(found.victim), web_pod, [True] * 4)
        for stranger in (found.watcher, found.claimant):
            until_judged(found.guard, the_pod(stranger), web_pod, [True, False] * 2)
        found.claimant.stop_agent()
        yield found


def test_a_pod_that_is_said_to_be_gone_by_another_keeps_its_clients(claimed: Claimed) -> None:
    """Else all of the victim's clients would be the claimant's."""
    watcher, victim, claimant = claimed.watcher, claimed.victim, claimed.claimant
    pods = [(each, the_pod(each)) for each in (victim, claimant)]
    ghost = str(ip_address(ipv4(the_pod(claimant))) + 9)
    ghosts = web((claimed.guard, the_pod(claimed.guard)), name="ghosts", address="10.96.0.9")
    ports = (EndpointPort("http", "TCP", TARGET_PORT),)
    of_nobody = (Endpoint(ghost, node="claimant", pod="ghost"),)
    more = EndpointSlice("shop", "ghosts-2", "ghosts", 4, ports, of_nobody)
    tell(watcher, [*web(*pods), *ghosts, more])
    wait_until(lambda: endpoints(watcher)["victim"] == (1, ""), "the victim's pod serves")

    forged = Absence(identity_of(victim).uid, _LATE, (ipv4(the_pod(victim)),))
    all_three = (ipv4(the_pod(victim)), ipv4(the_pod(claimant)), ghost)
    own = Absence(identity_of(claimant).uid, _LATE, all_three)
    claimed.say(watcher, *(claimed.sign(ABSENCE, each) for each in (forged, own)))

    gone = (0, "its container is gone")
    wait_until(lambda: endpoints(watcher, GHOSTS)["claimant"] == gone, "it was heard")
    assert endpoints(watcher) == {"victim": (1, ""), "claimant": gone}
    with serving_all(claimed.world, "victim", "claimant"), Connecting(the_pod(watcher)) as asking:
        asking.until("victim")
        assert {asking.next().answer for _ in range(20)} == {"victim"}


def test_labels_that_another_tells_of_a_pod_let_nobody_in_and_shut_nobody_out(
    claimed: Claimed,
) -> None:
    """At the guard: the victim's pod stays a client, the watcher's does not become one."""
    victim, watcher = the_pod(claimed.victim), the_pod(claimed.watcher)
    web_pod = the_pod(claimed.guard)
    client, other = {"app": "client"}, {"app": "other"}
    told = (
        LabelledPod(victim.namespace, victim.name, addresses_of(victim), other),
        LabelledPod(victim.namespace, "another", addresses_of(victim), other),
        LabelledPod(watcher.namespace, watcher.name, addresses_of(watcher), client),
    )
    parts = [LabelledPods(identity_of(claimed.victim).uid, part, _LATE) for part in range(PARTS)]

    claimed.say_to_guard(*(claimed.sign(PODS, each) for each in parts), of_others=told)

    with echoing(web_pod.netns):
        assert passes(victim, web_pod) == [True] * 2
        assert passes(watcher, web_pod) == [False] * 2


def test_a_sequence_above_all_others_draws_no_packet_to_who_is_not_the_node(
    claimed: Claimed,
) -> None:
    """The highest sequence there is counts where the signature is the node's own, and else not."""
    victim, claimant, guard = claimed.victim, claimed.claimant, claimed.guard
    at = (*(each.ip for each in claimant.addresses), _NOBODY)
    macs: dict[int, str] = {
        version: claimant.links()[f"limvx{version}"]["address"] for version in (4, 6)
    }
    uid = identity_of(victim).uid
    presence = Presence(uid, SEQUENCE.most, "boot", addresses=at, port=PORT, vtep_macs=macs)
    targets = addresses_of(the_pod(victim))
    words = [f"ip{'6' * (':' in each)} daddr {each}" for each in targets]
    with (
        counting(claimant, *words) as drawn,
        counting(guard, f"ip daddr {_NOBODY}", hook="output") as asked_there,
    ):
        claimed.say_to_guard(claimed.sign(PRESENCE, presence))
        for target in targets:
            assert pings(the_pod(guard).netns, target)
        assert asked_there() == 0
        assert [drawn(number) for number in range(len(words))] == [0, 0]
