"""Pods' interfaces that are gone although their pods are there, and those that no pod has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog

from limpet.datapath.node.apply import NodeKernel
from limpet.datapath.node.pod.announcer import Announcer
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.pod.attachments import Attachments
from limpet.datapath.node.pod.interface import create_pod_interface
from limpet.datapath.node.pod.pauses import InterfacePauses
from limpet.linux.namespaces import Namespace, namespace_id

_log = structlog.get_logger("round")


class PodKeeper:
    """Keeper of the record's pods and their interfaces."""

    def __init__(
        self,
        attachments: Attachments,
        announcer: Announcer,
        *,
        is_held: Callable[[str], bool],
        release: Callable[[Attachment], None],
        retired: Callable[[], None],
    ) -> None:
        """`is_held`: a host end belongs to a pod of the record. `release`: a pod is gone for good.

        `retired`: a host end was put aside.
        """
        self._attachments = attachments
        self._announcer = announcer
        self.is_held = is_held
        self._release = release
        self.retired = retired
        self._pauses = InterfacePauses()

    def __iter__(self) -> Iterator[Attachment]:
        return iter(self._attachments)

    def has(self, host_ifname: str) -> bool:
        return self._find(host_ifname) is not None

    def _find(self, host_ifname: str) -> Attachment | None:
        return next((each for each in self if each.link.host_ifname == host_ifname), None)

    def pause_s(self, host_ifname: str, now_s: float) -> float:
        """How long `restore` has to wait, since the interface of a pod that is there goes again and
        again."""
        left_s = self._pauses.left_s(host_ifname, now_s)
        attachment = self._find(host_ifname) if left_s else None
        if attachment is None or namespace_id(attachment.netns.path) != attachment.netns.id:
            return 0.0
        return left_s

    def restore(self, kernel: NodeKernel, host_ifname: str, now_s: float) -> None:
        """The interface is made anew if the pod is there, else the pod is gone too.

        Raises: LimpetError.
        """
        attachment = self._find(host_ifname)
        if attachment is None:
            return  # it has gone since the round was planned
        where = attachment.netns
        if attachment.bridge is None or namespace_id(where.path) != where.id:
            self._release(attachment)
            return
        with Namespace(where.path) as netns:
            create_pod_interface(
                kernel.route,
                attachment,
                bridge_ifindex=kernel.bridge_ifindex(attachment.bridge.ifname),
                netns=netns,
            )
        self._announcer.announce(attachment, attachment.bridge.ifname)
        times = self._pauses.note(host_ifname, now_s)
        about = {"pod": attachment.pod.name, "ifname": host_ifname}
        if times == 1:
            _log.info("a pod's interface was made anew", **about)
            return
        _log.warning(
            "a pod's interface is deleted again and again, perhaps by the pod itself",
            **about,
            times=times,
            next_after_s=self._pauses.left_s(host_ifname, now_s),
        )
