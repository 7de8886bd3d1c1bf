"""Figures of a real agent, asked as Prometheus asks them."""

from __future__ import annotations

import sys

from prometheus_client.parser import text_string_to_metric_families

from limpet.lab.world.node import LabNode
from tests.conftest import SEGMENTS, NodeFactory

AT = "127.0.0.1:9471"
_GET = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=10)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status)
print(answer.read().decode(), end="")
"""


def get(node: LabNode, path: str) -> tuple[int, str]:
    node.run("ip", "link", "set", "lo", "up")
    status, _, body = node.run(sys.executable, "-c", _GET, f"http://{AT}{path}").partition("\n")
    return int(status), body


def figures(node: LabNode) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(get(node, "/metrics")[1])
        for sample in family.samples
    }


def test_figures_follow_what_the_node_does(make_node: NodeFactory) -> None:
    node = make_node(segments=SEGMENTS, metrics_listen=[AT])
    node.start_agent()
    before = figures(node)
    pod = node.pod("web-0")
    pod.add()
    during = figures(node)
    pod.delete()
    after = figures(node)

    live, ready = ("limpet_agent_addresses", SEGMENTS[0], "live"), ("limpet_agent_ready",)
    assert [found[live] for found in (before, during, after)] == [0, 1, 0]
    assert [found["limpet_agent_attachments",] for found in (before, during, after)] == [0, 1, 0]
    assert before[ready] == 1
    assert (
        during["limpet_agent_rounds_total", "node"] >= before["limpet_agent_rounds_total", "node"]
    )
    assert after["limpet_agent_last_round_failures", "node"] == 0
    assert after["process_resident_memory_bytes",] > 1e6
    assert get(node, "/healthz") == (200, "ready\n")


def test_a_node_without_segments_is_not_healthy_and_says_why(make_node: NodeFactory) -> None:
    node = make_node(metrics_listen=[AT])
    node.start_agent()

    assert get(node, "/healthz") == (503, "no segments\n")
    assert figures(node)["limpet_agent_ready",] == 0
