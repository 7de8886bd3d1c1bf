"""The agent is killed while Services, their endpoints, policies and pods' labels change, all at
once: who is let in is served all the time, and who is not never gets in by a Service or beside it.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from limpet.agent.policies.of_kubernetes import KubernetesPolicies
from limpet.agent.settings import load_settings
from limpet.datapath.loop import Loop
from limpet.datapath.node.pod.attachments import Attachments
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from tests.beds.namespaces import Netns
from tests.beds.services.service_api import Object, ServiceApi
from tests.faults import test_killed_services as killed
from tests.faults.test_killed_policies import another, policy
from tests.faults.test_killed_services import STAYS, addresses, api, kill_amid_changes, node
from tests.lab.bed import a_world
from tests.waiting import PATIENCE_S, wait_until

__all__ = ["api", "node"]

TOPOLOGY = (
    killed.TOPOLOGY.replace("10.252.", "10.235.")
    .replace("fd00:252:", "fd00:235:")
    .replace("crane-1 = 3", "crane-1 = 4")
)
ROLES = ("web", "web", "client", "stranger")
"""What each pod of the node is by its label, in the order of `killed.PODS`."""
NAMESPACE = "default"
"""Of pods and policies."""


def in_namespace(document: Object) -> Object:
    return {**document, "metadata": {**document["metadata"], "namespace": NAMESPACE}}


OPEN = in_namespace(
    policy(
        "clients-only",
        {
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": {"app": "client"}}}],
                    "ports": [{"port": 8080}, {"protocol": "UDP", "port": 5353}],
                }
            ],
        },
    )
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("killed-both")) as world:
        world.machine("crane-1").settings["policies"] = "on"
        yield world


def pod_object(pod: LabPod, role: str, turn: int = 0) -> Object:
    """As an API server has it."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "labels": {"app": role, "turn": str(turn)},
        },
        "spec": {},
        "status": {"phase": "Running", "podIPs": [{"ip": str(x.ip)} for x in pod.addresses]},
    }


def agree(node: Machine, api: ServiceApi) -> None:
    """Returns when the kernel has the Services and the policies that the API server has."""
    killed.agree(node, api)
    wait_until(lambda: are_heard(node, api), "policies are heard")
    wait_until(lambda: are_as_planned(node), "policies are as planned")


def are_heard(node: Machine, api: ServiceApi) -> bool:
    found = {each["name"] for each in node.ask("policy.list")["policies"]}
    return found == api.objects["NetworkPolicy"].keys()


def are_as_planned(node: Machine) -> bool:
    """Whether another one who has heard the same would change nothing in the kernel."""
    links, settings = node.links(), load_settings(node.config_path)
    with Netns(node.name).entered():
        loop = Loop()
        second = KubernetesPolicies(
            loop,
            settings.folders.state_dir / "policies-of-kubernetes.jsonl",
            Attachments(node.run_dir / "attachments"),
            lambda name: str(links[name]["address"]),
            settings.source,
            random=random.random,
        )
        try:
            want = second.part.plan()
            return second.part.state(want) == want
        finally:
            second.close()
            loop.close()


@contextmanager
def knocking(pod: LabPod, places: Sequence[tuple[str, int, int]]) -> Iterator[list[int]]:
    """Within the block the pod sends datagrams to all the places, and begins connections there,
    all the time; how many, by what is yielded.

    `places`: an address, a port of UDP and one of TCP.
    """
    netns, stop, sent = Netns(pod.netns), threading.Event(), [0]

    def knock() -> None:
        with (
            netns.open_socket(4, socket.SOCK_DGRAM) as four,
            netns.open_socket(6, socket.SOCK_DGRAM) as six,
        ):
            while not stop.wait(0.002):
                for address, udp, tcp in places:
                    version = 6 if ":" in address else 4
                    with suppress(OSError):
                        (six if version == 6 else four).sendto(b"knock", (address, udp))
                    with netns.open_socket(version, socket.SOCK_STREAM) as connects:
                        connects.setblocking(False)
                        with suppress(OSError):
                            connects.connect((address, tcp))
                sent[0] += 1

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_who_is_let_in_is_served_and_nobody_else_gets_in_when_the_agent_is_killed_amid_changes(
    node: Machine, api: ServiceApi, chance: random.Random
) -> None:
    pods = list(node.pods.values())
    stranger = pods[ROLES.index("stranger")]
    api.put(*(pod_object(each, role) for each, role in zip(pods, ROLES, strict=True)), OPEN)
    agree(node, api)
    places = [(each, 53, 80) for each in STAYS]
    places += [(each, 5353, 8080) for each in addresses(node, "one", "two")]

    def beside() -> None:
        what = chance.random()
        if what < 0.2:
            api.put(pod_object(stranger, "stranger", chance.randrange(3)))
        elif what < 0.4:
            name = f"other-{chance.randrange(8)}"
            if held := api.objects["NetworkPolicy"].get(name):
                api.delete(held)
        else:
            api.put(in_namespace(another(chance)))

    with knocking(stranger, places) as sent:
        kill_amid_changes(node, api, chance, lambda: agree(node, api), beside=beside)
    assert sent[0] > 10

    api.delete(*api.objects["NetworkPolicy"].values())
    agree(node, api)
    with Netns(pods[0].netns).open_socket(4, socket.SOCK_DGRAM) as hears:
        hears.bind(("0.0.0.0", 5353))
        hears.settimeout(PATIENCE_S)
        with knocking(stranger, places):
            assert hears.recv(64) == b"knock", "nothing but the policies kept it out"
