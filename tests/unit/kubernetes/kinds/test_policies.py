"""What policies need of a pod."""

from __future__ import annotations

import msgspec

from limpet.kubernetes.kinds.objects import Metadata
from limpet.kubernetes.kinds.policies import (
    PODS,
    ContainerView,
    PodSpecView,
    PodView,
    PolicyPortView,
    pod_of,
)
from limpet.kubernetes.watch_event import read_item
from limpet.policies.policy import NamedPort


def container(*ports: int, restart: str | None = None) -> ContainerView:
    return ContainerView([PolicyPortView("web", each) for each in ports], restart)


def test_of_ports_of_one_name_the_first_container_s_counts_as_for_endpoints() -> None:
    beside, once = container(7, restart="Always"), container(9)
    metadata = Metadata(name="one", namespace="shop", uid="1", resource_version="1")
    for containers, port in (
        ([container(80), container(8080)], 80),
        ([container(), container(8080)], 8080),
        ([container()], 7),
    ):
        spec = PodSpecView(containers=containers, init_containers=[once, beside])
        pod = pod_of(PodView(metadata=metadata, spec=spec))
        assert pod is not None
        assert pod.ports == {NamedPort("tcp", "web"): port}


def test_a_pod_has_its_labels_and_its_first_named_ports_however_many_it_opens() -> None:
    """A media server says each of its thousands of ports, since Kubernetes has no ranges."""
    ports: list[dict[str, object]] = [{"containerPort": 10_000 + n} for n in range(2_000)]
    ports.append({"containerPort": 80, "name": "web"})
    document = {
        "metadata": {"namespace": "shop", "name": "media", "labels": {"app": "media"}},
        "spec": {"containers": [{"ports": ports}]},
    }
    view = read_item(msgspec.Raw(msgspec.json.encode(document)), PODS)

    assert isinstance(view, PodView)
    pod = pod_of(view)
    assert pod is not None
    assert pod.labels == {"app": "media"}
    assert pod.ports == {NamedPort("tcp", "web"): 80}
