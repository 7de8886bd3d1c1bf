"""Client and reflector at a real API server that restarts, forgets, hangs, and is put back."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import urllib.request
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from limpet.kubernetes.access.kubeconfig import read_kubeconfig
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import (
    ExistsError,
    GoneError,
    NoResourceError,
    NotFoundError,
    ObjectConflictError,
    StatusError,
)
from limpet.kubernetes.kinds.objects import CONFIG_MAPS, ConfigMap, Metadata, Resource
from limpet.kubernetes.lists import Selection
from limpet.kubernetes.reflector import Reflector
from limpet.kubernetes.reflector_state import ObjectChanges
from limpet.lab.kube.control_plane import ControlPlane
from tests.waiting import until

SPACE = "default"
ETCD_PORT = 2379
GRANTS = Resource("NodeGrant", "nodegrants", ConfigMap, "limpet.dev", "v1alpha1")
"""Nobody has applied its definition here."""


class Follower:
    """What somebody who follows config maps of a label knows."""

    def __init__(self, client: Client, label: str, *, mirror: bool) -> None:
        self.has: dict[str, str] = {}
        self.gone: list[str] = []
        self.lists = 0
        self.reflector = Reflector(
            client,
            CONFIG_MAPS,
            self._hear,
            mirror=mirror,
            random=lambda: 0.0,
            selection=Selection(SPACE, f"set={label}"),
        )

    async def _hear(self, changes: ObjectChanges[ConfigMap]) -> None:
        self.lists += changes.listed
        for _, name in changes.gone:
            self.gone.append(name)
            self.has.pop(name, None)
        for item in changes.put:
            self.has[item.metadata.name] = (item.data or {}).get("value", "")


@asynccontextmanager
async def running(*followers: Follower) -> AsyncIterator[None]:
    """They go on where they were, if they have run before."""
    tasks = [asyncio.create_task(each.reflector.run()) for each in followers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


Work = Callable[[Client], Awaitable[None]]


def asking(kubeconfig: Path, work: Work, *, answer_s: float = 20.0) -> None:
    """Runs `work` with a client."""

    async def run() -> None:
        client = Client(read_kubeconfig([kubeconfig]), answer_s=answer_s)
        try:
            await work(client)
        finally:
            client.close()
            await asyncio.sleep(0)  # what was aborted ends

    asyncio.run(run())


def thing(name: str, label: str, value: str = "") -> ConfigMap:
    return ConfigMap(metadata=Metadata(name=name, labels={"set": label}), data={"value": value})


async def create(client: Client, name: str, label: str, value: str = "") -> ConfigMap:
    return await client.create(CONFIG_MAPS, thing(name, label, value), namespace=SPACE)


async def create_many(client: Client, label: str, count: int) -> None:
    await asyncio.gather(*(create(client, f"{label}-{each:05}", label) for each in range(count)))


def write_to_etcd(api: ControlPlane, label: str, count: int) -> None:
    """Config maps of a kilobyte, as the API server would have stored them, a hundred at a time."""
    for start in range(0, count, 100):
        puts = []
        for number in range(start, start + 100):
            name = f"{label}-{number:05}"
            metadata = {
                "name": name,
                "namespace": SPACE,
                "uid": str(uuid.uuid4()),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"set": label},
            }
            stored = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
            value = json.dumps({**stored, "data": {"value": "x" * 1000}})
            key = f"/registry/configmaps/{SPACE}/{name}"
            puts.append({"requestPut": {"key": base64_of(key), "value": base64_of(value)}})
        post(f"http://127.0.0.1:{api.port_outside(ETCD_PORT)}/v3/kv/txn", {"success": puts})


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def end(api: ControlPlane, name: str) -> None:
    """Not gently: an API server waits long for those who watch."""
    await asyncio.to_thread(api.stop_process, name, signal.SIGKILL)


async def forget_history(api: ControlPlane) -> None:
    """All that etcd has of older versions is gone, and what the API server keeps in memory."""
    await end(api, "kube-apiserver")
    etcd = f"http://127.0.0.1:{api.port_outside(ETCD_PORT)}/v3/kv"
    found = json.loads(await asyncio.to_thread(post, f"{etcd}/range", {"key": "AA=="}))
    now = {"revision": found["header"]["revision"], "physical": True}
    await asyncio.to_thread(post, f"{etcd}/compaction", now)
    await asyncio.to_thread(api.start_process, "kube-apiserver")


def post(url: str, body: object) -> bytes:
    """By etcd's JSON gateway."""
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        said: bytes = answer.read()
    return said


def test_an_object_is_made_once_changed_by_who_has_seen_it_and_deleted_as_it_was(
    api: ControlPlane,
) -> None:
    async def work(client: Client) -> None:
        made = await create(client, "one", "crud", "a")
        with pytest.raises(ExistsError, match='create configmaps one: configmaps "one" already'):
            await create(client, "one", "crud")
        changed = ConfigMap(metadata=made.metadata, data={"value": "b"})
        newer = await client.replace(CONFIG_MAPS, changed, namespace=SPACE)
        assert newer.data == {"value": "b"}
        with pytest.raises(ObjectConflictError, match="has been modified"):
            await client.replace(CONFIG_MAPS, changed, namespace=SPACE)
        patched = await client.patch(CONFIG_MAPS, "one", {"data": {"more": "c"}}, namespace=SPACE)
        assert patched.data == {"value": "b", "more": "c"}
        test = {"op": "test", "path": "/data/value", "value": "wrong"}
        with pytest.raises(StatusError, match="patch configmaps one"):
            await client.patch(CONFIG_MAPS, "one", [test], namespace=SPACE)
        old = made.metadata
        with pytest.raises(ObjectConflictError):
            await client.delete(CONFIG_MAPS, "one", namespace=SPACE, uid="other")
        with pytest.raises(ObjectConflictError):
            await client.delete(
                CONFIG_MAPS, "one", namespace=SPACE, resource_version=old.resource_version
            )
        version = patched.metadata.resource_version
        await client.delete(
            CONFIG_MAPS, "one", namespace=SPACE, uid=old.uid, resource_version=version
        )
        with pytest.raises(NotFoundError, match='configmaps "one" not found'):
            await client.get(CONFIG_MAPS, "one", namespace=SPACE)

    asking(api.kubeconfig, work)


def test_what_is_refused_says_who_may_not_do_what_and_what_to_do(
    api: ControlPlane,
) -> None:
    path = api.write_kubeconfig("nobody", "limpet-nobody")

    async def work(client: Client) -> None:
        with pytest.raises(StatusError) as forbidden:
            await client.list_page(CONFIG_MAPS)
        words = str(forbidden.value)
        assert 'User "limpet-nobody" cannot list resource "configmaps"' in words
        assert "the account lacks this right, unless the API server has just started" in words

    async def work_of_administrator(client: Client) -> None:
        with pytest.raises(NoResourceError, match="kubectl apply -f deploy/crds"):
            await client.list_page(GRANTS)

    asking(path, work)
    asking(api.kubeconfig, work_of_administrator)


def test_five_thousand_objects_come_in_pages_and_a_token_that_expired_begins_the_list_again(
    api: ControlPlane,
) -> None:
    async def work(client: Client) -> None:
        await asyncio.to_thread(write_to_etcd, api, "many", 5000)
        selection = Selection(SPACE, "set=many")
        pages = [len(page.items) async for page in client.pages(CONFIG_MAPS, selection=selection)]
        assert (max(pages), sum(pages)) == (100, 5000)

        first = await client.list_page(CONFIG_MAPS, selection=selection, limit=10)
        await create(client, "many-late", "many")
        await forget_history(api)
        with pytest.raises(GoneError):
            await client.list_page(CONFIG_MAPS, selection=selection, limit=10, go_on=first.next)
        follower = Follower(client, "many", mirror=True)
        async with running(follower):
            await until(lambda: follower.lists)
            assert len(follower.has) == 5001

    asking(api.kubeconfig, work)


def test_a_watch_goes_on_through_a_restart_of_the_api_server_and_loses_nothing(
    api: ControlPlane,
) -> None:
    async def work(client: Client) -> None:
        await create_many(client, "restart", 20)
        follower = Follower(client, "restart", mirror=True)
        async with running(follower):
            await until(lambda: len(follower.has) == 20)
            await end(api, "kube-apiserver")
            await until(lambda: not follower.reflector.follow_state.connected)
            assert "API server" in follower.reflector.follow_state.error
            assert len(follower.has) == 20
            await asyncio.to_thread(api.start_process, "kube-apiserver")
            await until(lambda: follower.reflector.follow_state.connected)
            await create(client, "restart-late", "restart")
            await client.delete(CONFIG_MAPS, "restart-00003", namespace=SPACE)
            await until(lambda: "restart-late" in follower.has and follower.gone)
            assert follower.gone == ["restart-00003"]

    asking(api.kubeconfig, work)


def test_what_was_compacted_away_meanwhile_is_found_by_listing_anew(
    api: ControlPlane,
) -> None:
    """A mirror learns of what was deleted; who takes only what is told keeps it."""

    async def work(client: Client) -> None:
        await create_many(client, "compact", 10)
        mirror, hearer = (Follower(client, "compact", mirror=each) for each in (True, False))
        async with running(mirror, hearer):
            await until(lambda: len(mirror.has) == len(hearer.has) == 10)
        await client.delete(CONFIG_MAPS, "compact-00004", namespace=SPACE)
        await create(client, "compact-late", "compact")
        await forget_history(api)
        async with running(mirror, hearer):
            await until(lambda: mirror.lists == hearer.lists == 2)
        assert (mirror.gone, hearer.gone) == (["compact-00004"], [])
        assert sorted({**mirror.has, "compact-00004": ""}) == sorted(hearer.has)
        assert len(mirror.has) == 10

    asking(api.kubeconfig, work)


def test_a_version_that_is_not_there_yet_makes_it_list_anew(
    api: ControlPlane, tmp_path: Path
) -> None:
    """etcd was put back from a copy: the version that is watched from lies in the future."""

    async def work(client: Client) -> None:
        await create_many(client, "future", 3)
        mirror, hearer = (Follower(client, "future", mirror=each) for each in (True, False))
        for name in ("kube-apiserver", "etcd"):
            await end(api, name)
        shutil.copytree(api.etcd_data, tmp_path / "etcd")
        for name in ("etcd", "kube-apiserver"):
            await asyncio.to_thread(api.start_process, name)
        async with running(mirror, hearer):
            await until(lambda: mirror.lists and hearer.lists)
            await create_many(client, "future-late", 300)
            await create(client, "future-lost", "future")
            await until(lambda: len(mirror.has) == len(hearer.has) == 4)
            for name in ("kube-apiserver", "etcd"):
                await end(api, name)
            shutil.rmtree(api.etcd_data)
            shutil.copytree(tmp_path / "etcd", api.etcd_data)
            for name in ("etcd", "kube-apiserver"):
                await asyncio.to_thread(api.start_process, name)
            await until(lambda: mirror.lists == hearer.lists == 2)
        assert (mirror.gone, hearer.gone) == (["future-lost"], [])
        assert len(hearer.has) == 4

    asking(api.kubeconfig, work)


def test_an_api_server_that_hangs_is_told_of_and_nothing_is_lost(api: ControlPlane) -> None:
    async def work(client: Client) -> None:
        follower = Follower(client, "hang", mirror=True)
        await create_many(client, "hang", 3)
        async with running(follower):
            await until(lambda: len(follower.has) == 3)
            pid = api.processes["kube-apiserver"].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                follower.reflector.network_changed()
                await until(lambda: follower.reflector.follow_state.error)
                assert len(follower.has) == 3
            finally:
                os.kill(pid, signal.SIGCONT)
            await until(lambda: follower.reflector.follow_state.connected)
            await create(client, "hang-late", "hang")
            await until(lambda: len(follower.has) == 4)

    asking(api.kubeconfig, work, answer_s=5.0)
