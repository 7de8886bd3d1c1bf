"""The page of a node as one opens it by ssh, without ssh: the command runs in a terminal, bytes are
carried to the node's loopback, and the terminal goes with the connection."""

from __future__ import annotations

import os
import subprocess
import sys

from limpet.lab.world.node import LabNode
from limpet.linux.namespaces import Namespace
from tests.docs.pages import blocks
from tests.waiting import PATIENCE_S
from tests.web.test_access import Browser


def test_a_page_that_was_asked_for_by_ssh_lets_in_by_its_link_and_ends_with_the_connection(
    node: LabNode,
) -> None:
    (typed,) = (each.text for each in blocks("docs/page.md") if "ssh" in each.text)
    _, terminal, _, forwarded, _, *words = typed.removeprefix("$ ").split()
    assert (terminal, words) == ("-t", ["limpet", "ui"]), "without -t the page would go on"
    address = f"http://{forwarded.partition(':')[2]}"

    here, there = os.openpty()
    inside = ("setsid", "--ctty", "nsenter", f"--net={node.netns_path}")
    command = (*inside, sys.executable, "-m", *words, "--config", str(node.config_path))
    with (
        open(here, encoding="utf-8") as printed,
        subprocess.Popen(command, stdin=there, stdout=there, stderr=there) as page,
    ):
        os.close(there)
        try:
            before = f"{address}/enter#"
            link = next(line for line in printed if line.startswith(before)).strip()
            browser = Browser(address)
            with Namespace(node.netns_path) as netns, netns.entered():
                assert browser.enter(link.removeprefix(before)).status == 303
                assert "this node" in browser.ask("GET", "/").text  # which is in no cluster

            printed.close()

            page.wait(PATIENCE_S)
        finally:
            page.kill()
