"""Pods' interfaces, made and put aside for the verbs by what `datapath.node.pod.interface` does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from limpet.base.errors import CniCode, CniError, KernelError
from limpet.datapath.node.part import NodePart
from limpet.datapath.node.plan import host_ifname
from limpet.datapath.node.pod.attachment import Attachment, BridgeSpec
from limpet.datapath.node.pod.interface import (
    InterfaceExists,
    create_pod_interface,
    delete_inside,
    retire_host_end,
    retire_inside,
)
from limpet.datapath.node.pod.reaper import Reaper
from limpet.ipam.leases import Holder
from limpet.linux.namespaces import Namespace, namespace_id, own_namespace_id
from limpet.linux.netlink.socket import RouteSocket


class PodInterfaces:
    """What is put aside here is removed by the reaper, which is told by the verbs."""

    def __init__(self, route: RouteSocket, reaper: Reaper, node_part: NodePart) -> None:
        self._route = route
        self._reaper = reaper
        self._node_part = node_part

    def connect(self, pod: Attachment, bridge: BridgeSpec, netns: Namespace) -> None:
        """Makes the pod's interface on its bridge. Raises: CniError, KernelError."""
        try:
            self._create(pod, bridge, netns)
        except InterfaceExists:
            # Left by a try of this very request that the agent did not survive? Then its host end
            # is there, or a round has put that aside already; the pod's end goes with it.
            if retire_host_end(self._route, pod.link.host_ifname):
                retire_inside(netns, pod.holder.ifname)
            self._reaper.remove_now()
            self._create_at_last(pod, bridge, netns)
        except KernelError:
            # The bridge may have gone since it was last looked at.
            self._node_part.run("an interface could not be made")
            self._create_at_last(pod, bridge, netns)

    def _create_at_last(self, pod: Attachment, bridge: BridgeSpec, netns: Namespace) -> None:
        try:
            self._create(pod, bridge, netns)
        except InterfaceExists as error:
            raise CniError(
                CniCode.INTERFACE_EXISTS,
                f"interface {pod.holder.ifname} exists in {pod.netns.path} already",
                "another plugin made it; DEL comes first",
            ) from error

    def _create(self, pod: Attachment, bridge: BridgeSpec, netns: Namespace) -> None:
        bridge_ifindex = self._node_part.ensure_bridge(pod.network, bridge)
        self._node_part.guards.cover(pod)
        create_pod_interface(self._route, pod, bridge_ifindex=bridge_ifindex, netns=netns)

    def disconnect(self, pod: Attachment, netns: str) -> None:
        """Both ends down, renamed and put aside. `netns`: where the runtime says that it is now."""
        path = next(
            (p for p in (netns, pod.netns.path) if p and namespace_id(p) == pod.netns.id), None
        )
        if path is not None:
            with contextlib.suppress(KernelError), Namespace(path) as inside:
                retire_inside(inside, pod.holder.ifname)
        retire_host_end(
            self._route, pod.link.host_ifname, shaped=bool(pod.bandwidth.egress_rate_bits)
        )

    def disconnect_unrecorded(
        self, network: str, holder: Holder, netns: str = "", others: Iterable[Attachment] = ()
    ) -> bool:
        """The same for a pod that there is no record of. False: nothing of it is ours.

        `others`: who may have an interface of that name in a namespace that a late DEL names.
        """
        name = host_ifname(network, holder)
        ours = retire_host_end(self._route, name)
        if ours and _is_left_alone(netns, holder.ifname, others):
            with contextlib.suppress(KernelError), Namespace(netns) as pod:
                retire_inside(pod, holder.ifname)
        return ours

    async def delete_foreign(self, netns: str, ifname: str, others: Iterable[Attachment]) -> None:
        """Deletes the interface that another plugin made for a pod which is ours to remove."""
        if _is_left_alone(netns, ifname, others):
            with contextlib.suppress(KernelError), Namespace(netns) as pod:
                await asyncio.to_thread(delete_inside, pod, ifname)


def _is_left_alone(netns: str, ifname: str, others: Iterable[Attachment]) -> bool:
    """It is a namespace, not the node's own, and no newer sandbox has that interface in it."""
    where = namespace_id(netns) if netns else None
    return where not in (None, own_namespace_id()) and not any(
        where == other.netns.id and other.holder.ifname == ifname for other in others
    )
