"""At the API server: a test's pods are made, waited for, read, and taken away, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from limpet.base.errors import LimpetError
from limpet.cli.connectivity import objects
from limpet.cli.connectivity.beside import make_beside
from limpet.cli.connectivity.choice import (
    Chosen,
    Options,
    choose,
    find_image,
    find_segments,
)
from limpet.cli.connectivity.plan import plan_tasks
from limpet.cli.connectivity.report import ConnectivityReport, Result, result, sources
from limpet.cli.connectivity.tasks import Task, decode_outcomes
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import NotFoundError, StatusError
from limpet.kubernetes.kinds.objects import Resource, Viewed
from limpet.kubernetes.lists import Selection
from limpet.kubernetes.pods import PODS, Pod, create_document

_AGAIN_S = 1.0
_GONE_S = 120.0
_SLACK_S = 60.0
"""For a pod to start and to end, beside what it tries."""
_PATIENCE_S = 20.0
_ENDED = ("Succeeded", "Failed")

Say = Callable[[str], None]
_NAMESPACES = Resource("Namespace", "namespaces", Viewed)


async def run(client: Client, options: Options, say: Say) -> ConnectivityReport:
    """What came of it; whatever happens, nothing of it is left. Raises: LimpetError."""
    task = asyncio.current_task()
    assert task is not None
    # As Ctrl-C does by itself: what was made is taken away first.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    chosen = await choose(client, options)
    image = options.image or await find_image(client, options.namespace)
    await _take_away_leftovers(client, say)
    try:
        await create_document(client, _NAMESPACES, objects.namespace())
        return await _try(client, options, chosen, image, say)
    finally:
        say("taking the test's pods away")
        await asyncio.shield(asyncio.ensure_future(_take_away(client)))


async def _try(
    client: Client, options: Options, chosen: Chosen, image: str, say: Say
) -> ConnectivityReport:
    names = [node.name for node in chosen.nodes]
    beside = await make_beside(client, options)
    say(f"starting a pod that answers on {sources(names)}")
    for number, node in enumerate(names):
        await _create(client, objects.answerer(number, node, image), options.start_s)
    pods, broken = await _await(
        client,
        objects.ANSWERER,
        options.start_s,
        lambda pod: pod.status.phase == "Running" and bool(pod.addresses),
    )
    addresses = {pod.spec.node_name: pod.addresses for pod in pods}
    segments = await find_segments(client)
    answering = [
        replace(node, segments=tuple(segments.get(node.name, ())))
        for node in chosen.nodes
        if node.name in addresses
    ]
    tasks = plan_tasks(
        answering,
        addresses,
        beside,
        others=options.others,
        patience_s=_PATIENCE_S,
    )
    say(f"trying from {sources([*tasks])}")
    for number, (node, task) in enumerate(tasks.items()):
        await _create(client, objects.prober(number, node, image, task), options.start_s)
    most = max((len(task.targets) for task in tasks.values()), default=0)
    within_s = options.start_s + _SLACK_S + 2 * _PATIENCE_S * most / 8
    pods, unfinished = await _await(
        client, objects.PROBER, within_s, lambda pod: pod.status.phase in _ENDED
    )
    results: list[Result] = []
    for pod in sorted(pods, key=lambda each: each.spec.node_name):
        node = pod.spec.node_name
        try:
            results += _results(node, tasks[node], pod)
        except LimpetError as error:
            unfinished[node] = str(error)
    return ConnectivityReport(
        nodes=names, left_out=chosen.left_out, broken={**broken, **unfinished}, results=results
    )


def _results(node: str, task: Task, pod: Pod) -> list[Result]:
    """Raises: LimpetError where the pod did not tell what came of it."""
    ended = next(
        (e.state.terminated for e in pod.status.container_statuses or () if e.state.terminated),
        None,
    )
    if ended is None or ended.exit_code != 0:
        why = (ended.message if ended else "") or pod.status.message or _state(pod)
        raise LimpetError(f"its pod {pod.metadata.name} failed: {why.strip()[:400]}")
    outcomes = decode_outcomes(ended.message)
    if len(outcomes) != len(task.targets):
        raise LimpetError(f"its pod {pod.metadata.name} told of other targets than it was given")
    return [result(node, *pair) for pair in zip(task.targets, outcomes, strict=True)]


async def _create(client: Client, document: Mapping[str, Any], within_s: float) -> None:
    """Raises: LimpetError. A new namespace has its service account a moment later."""
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            await create_document(client, PODS, document, namespace=objects.NAMESPACE)
        except StatusError as error:
            lacks_account = error.status.code == 403 and "serviceaccount" in error.status.message
            if not lacks_account or time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(_AGAIN_S / 4)
        else:
            return


async def _await(
    client: Client, role: str, within_s: float, done: Callable[[Pod], bool]
) -> tuple[list[Pod], dict[str, str]]:
    """Pods that got there, and by node why others did not. Raises: LimpetError."""
    deadline_s = time.monotonic() + within_s
    selection = Selection(objects.NAMESPACE, labels=f"{objects.ROLE_LABEL}={role}")
    while True:
        found = [
            pod async for page in client.pages(PODS, selection=selection) for pod in page.items
        ]
        if not found:
            raise LimpetError(
                "connectivity test: its pods are gone (does somebody else run such a test now?)"
            )
        waiting = [pod for pod in found if not done(pod)]
        hopeless = [pod for pod in waiting if pod.status.phase in _ENDED]
        if len(hopeless) == len(waiting) or time.monotonic() > deadline_s:
            there = [pod for pod in found if done(pod)]
            return there, {pod.spec.node_name: _lacking(pod, within_s) for pod in waiting}
        await asyncio.sleep(_AGAIN_S)


def _lacking(pod: Pod, within_s: float) -> str:
    if pod.status.phase in _ENDED:
        return f"its pod {pod.metadata.name} ended by itself: {_state(pod)}"
    return f"its pod {pod.metadata.name} did not get there in {within_s:g} s: {_state(pod)}"


def _state(pod: Pod) -> str:
    for each in pod.status.container_statuses or ():
        if waiting := each.state.waiting:
            return f"{waiting.reason} {waiting.message}".strip()
        if ended := each.state.terminated:
            return f"exit code {ended.exit_code} {ended.reason} {ended.message}".strip()
    told = pod.status.reason or pod.status.message
    return told or (
        f"{pod.status.phase or 'no status'} (does its kubelet run, and reach the API server? "
        f"kubectl -n {objects.NAMESPACE} describe pod {pod.metadata.name})"
    )


async def _take_away_leftovers(client: Client, say: Say) -> None:
    """Takes away what an earlier test that was killed has left. Raises: LimpetError."""
    try:
        await client.get(_NAMESPACES, objects.NAMESPACE)
    except NotFoundError:
        return
    say("an earlier test was not taken away: that is done first")
    await _take_away(client)


async def _take_away(client: Client) -> None:
    """Returns when nothing is left. Raises: LimpetError."""
    deadline_s = time.monotonic() + _GONE_S
    while True:
        with contextlib.suppress(NotFoundError, StatusError):
            await client.delete(_NAMESPACES, objects.NAMESPACE)
        try:
            await client.get(_NAMESPACES, objects.NAMESPACE)
        except NotFoundError:
            return
        except StatusError as error:
            if error.status.code == 403:
                return  # who may not look has made nothing either
            raise
        if time.monotonic() > deadline_s:
            raise LimpetError(
                f"take away namespace {objects.NAMESPACE}: it is still there after {_GONE_S:g} s "
                f"(kubectl get pods -n {objects.NAMESPACE}; those of nodes that are cut off go "
                "when these are back: the next test takes away what is left)"
            )
        await asyncio.sleep(_AGAIN_S / 2)
