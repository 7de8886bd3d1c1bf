"""The process around the election: reads the Lease, writes it, says who leads."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from datetime import UTC, datetime

import msgspec
import structlog

from limpet.base.errors import LimpetError, StorageError
from limpet.base.process.wall_clock import passed_s
from limpet.controller.leader.election import DURATION_S, RETRY_S, Election, Held, Wish
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import ExistsError, NotFoundError, ObjectConflictError
from limpet.kubernetes.kinds.objects import LEASES, Lease, LeaseSpec, Metadata

LEASE = "limpet-controller"
_ANSWER_S = 5.0
_ATTEMPTS = 2
"""To read and write it, where another wrote in between."""
_log = structlog.get_logger("leader")


def own_identity() -> str:
    """Name of this process: no other has it, nor this one when it is started again."""
    return f"{socket.gethostname()[:200]}_{secrets.token_hex(4)}"


class Elector:
    """Made and used on one event loop."""

    def __init__(
        self, client: Client, namespace: str, identity: str, *, retry_s: float = RETRY_S
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._retry_s = retry_s
        self._election = Election(identity)
        self._lease: Lease | None = None
        self._said = ""
        self._clock_is_wrong = False
        self._stepped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    def start(self, *, in_s: float = 0.0) -> None:
        """`in_s`: until then it lets others take the Lease."""
        self._task = asyncio.create_task(self._run(in_s))

    async def stop(self) -> None:
        """Gives the Lease back, so that another leads at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if not self.leads:
            return
        was_sure = self._election.sure
        with contextlib.suppress(LimpetError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                if not was_sure:
                    await self._read()
                transitions = self._election.seen.transitions if self._election.seen else 0
                mine = self.leads  # read anew, it may be another's
                self._election = self._election.lost()
                if mine:
                    await self._write(Wish("", transitions, ""))
        self._election = self._election.lost()

    @property
    def leads(self) -> bool:
        return self._election.leads(passed_s())

    @property
    def leader(self) -> str:
        """Who holds the Lease, as far as this controller knows; empty: nobody."""
        return self._election.leader

    def check(self) -> None:
        """Raises: StorageError when this controller does not lead: it may write nothing."""
        if not self.leads:
            raise StorageError(
                "write",
                f"as {self._election.me}",
                f"this controller does not lead, {self.leader or 'nobody'} does",
                hint="ask that one; nodes do so by themselves",
            )

    async def turned(self, *, leads: bool) -> None:
        """Returns when this controller leads, or when it does not."""
        while self.leads is not leads:
            left_s = self._election.leads_until_s - passed_s()
            timeout_s = left_s if left_s > 0 else None
            await asyncio.wait((self._stepped,), timeout=timeout_s)

    async def _run(self, in_s: float) -> None:
        await asyncio.sleep(in_s)
        while True:
            led = self.leads
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await self._step()
            except (LimpetError, TimeoutError) as error:
                words = str(error) or f"the API server did not answer within {_ANSWER_S:g} s"
                if words != self._said:
                    _log.warning("the Lease is not renewed", lease=LEASE, error=words)
                self._said = words
            else:
                self._said = ""
            self._mind_clock()
            if led is not self.leads:
                _log.info("leads" if self.leads else "does not lead", leader=self.leader)
            stepped, self._stepped = self._stepped, asyncio.get_running_loop().create_future()
            stepped.set_result(None)
            await asyncio.sleep(self._retry_s)

    def _mind_clock(self) -> None:
        ahead_s = self._client.clock_ahead_s
        if ahead_s and not self._clock_is_wrong:
            _log.error(
                "the clock of this machine is wrong, or that of the API server's",
                ahead_s=round(ahead_s),
                what_to_do="set it: tokens expire by it, and segments of removed nodes rest by it",
            )
        self._clock_is_wrong = bool(ahead_s)

    async def _step(self) -> None:
        """Raises: LimpetError."""
        for _ in range(_ATTEMPTS):
            if not self._election.sure:
                await self._read()
            try:
                await self._wish()
            except (ObjectConflictError, ExistsError, NotFoundError):
                # Somebody has written or deleted it, or a wish of this controller whose answer was
                # lost was granted late: what it says now tells whether this one still leads.
                continue
            return
        self._election = self._election.lost()

    async def _read(self) -> None:
        try:
            self._lease = await self._client.get(LEASES, LEASE, namespace=self._namespace)
        except NotFoundError:
            self._lease = None
        self._election = self._election.observe(_held(self._lease), passed_s())

    async def _wish(self) -> None:
        """Raises: ConflictError, ExistsError, NotFoundError when it is not as it was seen."""
        asked_at_s = passed_s()
        wish = self._election.wish(asked_at_s)
        if wish is None:
            return
        self._election = self._election.asked()
        lease = await self._write(wish)
        found = _held(lease)
        assert found is not None
        self._lease = lease
        self._election = self._election.written(found, asked_at_s)

    async def _write(self, wish: Wish) -> Lease:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for people; nobody reads it
        before = self._lease
        spec = LeaseSpec(
            holder_identity=wish.holder,
            lease_duration_seconds=int(DURATION_S),
            acquire_time=moment,
            renew_time=moment,
            lease_transitions=wish.transitions,
        )
        if before is None:
            item = Lease(metadata=Metadata(name=LEASE), spec=spec)
            try:
                return await self._client.create(LEASES, item, namespace=self._namespace)
            except NotFoundError as error:
                raise StorageError(
                    "make Lease",
                    f"{self._namespace}/{LEASE}",
                    str(error),
                    hint=f"kubectl create namespace {self._namespace}, or set `namespace` in the "
                    "controller's configuration",
                ) from error
        if before.spec.holder_identity == wish.holder:
            spec = msgspec.structs.replace(spec, acquire_time=before.spec.acquire_time)
        item = msgspec.structs.replace(before, spec=spec)
        return await self._client.replace(LEASES, item, namespace=self._namespace)


def _held(lease: Lease | None) -> Held | None:
    if lease is None:
        return None
    spec = lease.spec
    return Held(
        spec.holder_identity or "",
        float(spec.lease_duration_seconds or 0),
        spec.lease_transitions or 0,
        f"{lease.metadata.uid} {lease.metadata.resource_version}",
    )
