"""A node's side of the cluster without a kernel: identity, snapshot and session, each the real."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from limpet.base.settings import Folders
from limpet.cloud.join import Joined, join
from limpet.cloud.join_requests import JoinOrder
from limpet.cloud.link import ControllerLink
from limpet.cloud.path_reports import PathReports
from limpet.cloud.pod_reports import PodReports
from limpet.cloud.publisher import Reports
from limpet.cloud.session import Session
from limpet.cluster.identity import Identity, load_identity
from limpet.cluster.kinds.grant import Grant
from limpet.cni.ledgers import Ledgers
from limpet.datapath.node.pod.attachments import Attachments
from limpet.paths.report import NodeReport
from tests.beds.member import membership_of
from tests.controller.machines import Controller
from tests.waiting import until


class Member:
    """A node's folders, and who it is once it has joined."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.folders = Folders(
            state_dir=folder / "state", run_dir=folder / "run", data_dir=folder / "networks"
        )

    def order(self, controller: Controller, token: str = "", **changes: object) -> JoinOrder:
        order = JoinOrder(token or controller.token(), (f"127.0.0.1:{controller.port}",), self.name)
        return replace(order, **changes)  # type: ignore[arg-type]

    def join(self, controller: Controller, token: str = "", **changes: object) -> Joined:
        """Raises: LimpetError."""
        return join(self.folders, self.order(controller, token, **changes), ())

    @property
    def folder(self) -> Path:
        return self.folders.cluster_dir

    @property
    def identity(self) -> Identity:
        found = load_identity(self.folder)
        assert found is not None
        return found

    @contextlib.asynccontextmanager
    async def running(
        self,
        *,
        controllers: Sequence[str] = (),
        segment_demand: Callable[[Grant], tuple[int, ...]] = lambda _grant: (),
        boot_id: str = "boot",
        elsewhere: Collection[str] = (),
        untold: Collection[str] = (),
    ) -> AsyncIterator[Running]:
        identity = self.identity
        if controllers:
            identity = replace(identity, controllers=tuple(controllers))
        running = Running(self.folders, identity, segment_demand, boot_id, elsewhere, untold)
        running.session.start()
        try:
            yield running
        finally:
            await running.session.stop()
            running.close()


class Running:
    """Its agent's cluster side."""

    def __init__(
        self,
        folders: Folders,
        identity: Identity,
        segment_demand: Callable[[Grant], tuple[int, ...]],
        boot_id: str,
        elsewhere: Collection[str] = (),
        untold: Collection[str] = (),
    ) -> None:
        self.membership = membership_of(identity, boot_id=boot_id)
        self.ledgers = Ledgers(folders.data_dir, 30.0, Attachments(folders.run_dir / "attachments"))
        self.ledgers.open_known()
        self.pods = PodReports(self.ledgers, identity.folder / "reports.json")
        self.session = Session(
            self.membership,
            ControllerLink(identity),
            reports=Reports(self.pods, PathReports(lambda _told: (NodeReport(), {}))),
            segment_demand=lambda: segment_demand(self.grant) if self.membership.grant else (),
            random=lambda: 0.0,
            elsewhere=elsewhere,
            untold=untold,
        )
        self.membership.subscribe(self.session.hear)

    def close(self) -> None:
        self.ledgers.close()
        self.membership.close()

    @property
    def grant(self) -> Grant:
        assert self.membership.grant is not None
        return self.membership.grant

    @property
    def segments(self) -> set[str]:
        return set(map(str, self.grant.segments))

    def announce(self, address: str) -> None:
        self.membership.announce(
            addresses=(ip_address(address),), port=7471, vtep_macs={}, link_mtu_bytes=1500
        )

    def addresses_of(self, uid: str) -> tuple[str, ...]:
        """As this node knows them."""
        entry = self.membership.snapshot.nodes.get(uid)
        if entry is None or entry.presence is None:
            return ()
        return tuple(map(str, entry.presence.addresses))

    async def connected(self) -> None:
        await until(lambda: self.session.state.connected)
