"""Lists the pods of the cluster for a person: page by page, as each node may have a mebibyte of
them."""

from __future__ import annotations

import msgspec

from limpet.base.bounds.administrators import LISTED_PODS
from limpet.cluster.api import InterfaceAddresses
from limpet.cluster.kinds.grant import Grant
from limpet.controller.admin.answers import PodLine, PodPage, Reporting
from limpet.controller.admin.communities import Verb
from limpet.controller.registry.tables import Tables, by_name
from limpet.controller.state import nodes
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.reports import ReportedByNode


class PodAdmin:
    """The verbs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.verbs: dict[str, Verb] = {"pod.list": self._list}

    async def _list(self, node: str | None = None, after: str = "") -> PodPage:
        """Pods of the nodes in the order of their names, as many as an answer holds; its `after`
        says from where on to ask again, and is not there where that was all."""
        name, _, after_uid = after.rpartition(" ")

        def make(tables: Tables) -> list[Grant]:
            wanted = node and nodes.find_node(tables, node).uid
            return by_name(
                grant
                for uid, grant in tables.grants.items()
                if not grant.tombstone
                and wanted in (None, "", uid)
                and (grant.name, uid) > (name, after_uid)
            )

        page = PodListing()
        for grant in await self._cluster.change(make):
            if not page.add(grant.name, grant.uid, await self._cluster.reports.get(grant.uid)):
                return page.told(after=page.last)
        return page.told()


class PodListing:
    """Pods of whole nodes, as many as are told at once: one node's always fit."""

    def __init__(self) -> None:
        self._pods: list[PodLine] = []
        self._nodes: list[Reporting] = []
        self.size_bytes = 0
        """As it is sent, without what stands around the lists."""

    @property
    def last(self) -> str:
        """Name and uid of the node that was added last."""
        return f"{self._nodes[-1].node} {self._nodes[-1].uid}" if self._nodes else ""

    def add(self, name: str, uid: str, report: ReportedByNode | None) -> bool:
        """Whether the node still fitted."""
        pods = [_pod_line(name, uid, pod) for pod in (report.pods if report else ())]
        told = Reporting(node=name, uid=uid, reported_at_s=report.at_s if report else None)
        size_bytes = sum(len(msgspec.json.encode(each)) + 1 for each in (told, *pods))
        if self._nodes and self.size_bytes + size_bytes > LISTED_PODS.most:
            return False
        self._pods += pods
        self._nodes.append(told)
        self.size_bytes += size_bytes
        return True

    def told(self, after: str = "") -> PodPage:
        """`after`: from where on to ask again."""
        return PodPage(pods=self._pods, nodes=self._nodes, after=after)


def _pod_line(node: str, uid: str, pod: InterfaceAddresses) -> PodLine:
    return PodLine(
        node=node,
        uid=uid,
        namespace=pod.namespace,
        pod=pod.pod,
        network=pod.network,
        ifname=pod.ifname,
        addresses=list(pod.addresses),
        kept=pod.kept,
    )
