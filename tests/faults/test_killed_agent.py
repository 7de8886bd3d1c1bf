"""The agent is killed at random under load; nothing may be given twice, lost or left over."""

from __future__ import annotations

import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import CniAnswer, LabPod
from tests.conftest import NodeFactory
from tests.effort import effort

PODS = 200
KILLS = effort(4, 10)
AT_ONCE = 32


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_nothing_is_lost_or_doubled_when_the_agent_is_killed_under_load(
    make_node: NodeFactory, chance: random.Random
) -> None:
    node = make_node(segments=["10.246.0.0/21", "fd00:46::/64"], rest_s=0)
    node.environment["LIMPET_WAIT_S"] = "60"
    node.start_agent()
    pods = [node.pod(f"p{n}") for n in range(PODS)]
    attached = set(pods[: PODS // 2])
    flip(node, pods[: PODS // 2], set(), None)

    for _ in range(KILLS):
        chance.shuffle(pods)
        kill_after = chance.randrange(PODS)
        answers = flip(node, pods, attached, kill_after)
        failed = [(pod.name, a.document) for pod, a in answers.items() if a.exit_code]
        assert failed == []
        attached = set(pods) - attached
        node.ask("ipam.repair")
        check(node, attached, chance)

    for pod in attached:
        pod.delete()
    node.stop_agent()
    assert [name for name in node.links() if name.startswith("lim")] == ["limpet0"]


def flip(
    node: LabNode, pods: list[LabPod], attached: set[LabPod], kill_after: int | None
) -> dict[LabPod, CniAnswer]:
    """ADD for every pod that is detached and DEL for the others, all at once; one kill."""
    answered = 0
    lock = threading.Condition()

    def one(pod: LabPod) -> CniAnswer:
        nonlocal answered
        answer = node.cni("DEL" if pod in attached else "ADD", pod)
        if pod not in attached:
            pod.addresses = answer.addresses
        with lock:
            answered += 1
            lock.notify_all()
        return answer

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {pod: pool.submit(one, pod) for pod in pods}
        if kill_after is not None:
            with lock:
                lock.wait_for(lambda: answered >= kill_after)
            node.stop_agent(signal.SIGKILL)
            node.start_agent()
        return {pod: future.result() for pod, future in futures.items()}


def check(node: LabNode, attached: set[LabPod], chance: random.Random) -> None:
    given = [str(address.ip) for pod in attached for address in pod.addresses]
    assert len(given) == len(set(given)), "an address was given twice"
    listed = node.ask("ipam.list")["records"]
    assert {r["address"] for r in listed if r["state"] == "live"} == set(given)
    links = node.links()
    ends = {name for name in links if name.startswith("lim") and not name.startswith("limx")}
    assert len(ends - {"limpet0"}) == len(attached)
    for pod in chance.sample(sorted(attached, key=lambda pod: pod.name), 5):
        assert pod.reaches("10.246.0.1")
        assert pod.reaches("fd00:46::1")
