"""Which pod is meant, where the agent is stopped."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from limpet.agent.settings import Settings
from limpet.base.errors import LimpetError
from limpet.base.settings import Folders
from limpet.cli.trace.run import look_up
from limpet.datapath.node.pod.attachment import PodLink, PodName
from limpet.datapath.node.pod.attachments import Attachments
from limpet.ipam.leases import Holder
from tests.unit.cli.doctor.test_agent import pod

TARGET = "10.244.2.7"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a node with two pods of one name, of two namespaces, and one with two interfaces."""
    attachments = Attachments(tmp_path / "attachments")
    staged = replace(pod("staged", "10.244.1.3/24"), pod=PodName("staging", "web-0"))
    database = pod("db-0", "10.244.1.4/24")
    second = replace(pod("db-0", "10.244.1.5/24"), holder=Holder("db-0", "net1"))
    for number, each in enumerate((pod("web-0", "10.244.1.2/24"), staged, database, second)):
        attachments.put(replace(each, link=PodLink(host_ifname=f"lim{number}")))
    return Settings(folders=Folders(run_dir=tmp_path, socket=tmp_path / "agent.sock"))


@pytest.mark.parametrize(("origin", "target"), [("web-0", TARGET), (TARGET, "web-0")])
def test_a_name_of_several_pods_is_refused_with_the_names_to_choose_from(
    settings: Settings, origin: str, target: str
) -> None:
    with pytest.raises(LimpetError) as refused:
        look_up(settings, origin, target, "tcp", 80)

    assert str(refused.value) == (
        "trace: web-0: several pods of this node have that name: default/web-0, staging/web-0 "
        "(say which, as NAMESPACE/NAME)"
    )


@pytest.mark.parametrize(
    ("word", "source"),
    [
        ("default/web-0", "10.244.1.2"),
        ("staging/web-0", "10.244.1.3"),
        ("10.244.1.3", "10.244.1.3"),
        ("db-0", "10.244.1.4"),
    ],
    ids=["one", "other", "by address", "two interfaces"],
)
def test_who_says_which_pod_gets_that_one(settings: Settings, word: str, source: str) -> None:
    question = look_up(settings, word, TARGET, "tcp", 80)

    assert question.source == ip_address(source)
    assert question.sender is not None
