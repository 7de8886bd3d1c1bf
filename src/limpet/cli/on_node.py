"""`--node`: a command about one node, asked from any machine with a kubeconfig.

The API server runs the same command in the pod of that node's agent, so what is looked at is the
node, and nothing of it has to be reached from here.
"""

from __future__ import annotations

import asyncio
import codecs
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from limpet.base.errors import AgentUnavailable, LimpetError
from limpet.cli.output import Passage
from limpet.cli.reach import NAMESPACE, Context, Namespace

if TYPE_CHECKING:  # loaded only where a command asks by way of a pod
    from limpet.kubernetes.client import Client
    from limpet.kubernetes.pods import Pod

_AGENTS = "app.kubernetes.io/part-of=limpet,app.kubernetes.io/component=agent"
_CONTAINER = "agent"
_ANSWER_S = 60.0
"""An API server tries half a minute to get to a kubelet, and says then why it does not."""
_SILENCE_S = 150.0
"""What takes longest without a word is doctor where programs hang."""

_Node = Annotated[
    str,
    typer.Option(
        "--node",
        metavar="NAME",
        help="Name of the node to ask, in a Kubernetes cluster; by default it is this machine.",
    ),
]
_Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig of the Kubernetes cluster that --node is in (default: "
        "KUBECONFIG, ~/.kube/config).",
    ),
]


def on_node(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options that have it run on another node."""

    @wraps(command)
    def run(
        *,
        invocation: typer.Context,
        node: str,
        kubeconfig: Path | None,
        context: str,
        namespace: str,
        **arguments: Any,
    ) -> None:
        if node:
            there = _There(kubeconfig, context, namespace, node)
            raise typer.Exit(_run_there(there, words_of(invocation)))
        if kubeconfig is not None or context or namespace != NAMESPACE:
            raise typer.BadParameter(
                "which node of that cluster? --node NAME says it", param_hint="--node"
            )
        try:
            command(**arguments)
        except AgentUnavailable as error:
            if not _has_kubeconfig():
                raise
            words = f"{error}; --node NAME asks a node of the kubeconfig's cluster"
            raise AgentUnavailable(words) from error

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [
        inspect.Parameter("invocation", keyword, annotation=typer.Context),
        inspect.Parameter("node", keyword, default="", annotation=_Node),
        inspect.Parameter("kubeconfig", keyword, default=None, annotation=_Kubeconfig),
        inspect.Parameter("context", keyword, default="", annotation=Context),
        inspect.Parameter("namespace", keyword, default=NAMESPACE, annotation=Namespace),
    ]
    signature = inspect.signature(command, eval_str=True)
    parameters = [each.replace(kind=keyword) for each in signature.parameters.values()]
    setattr(run, "__signature__", signature.replace(parameters=[*parameters, *own]))  # noqa: B010
    del run.__wrapped__
    run.__annotations__ = {each.name: each.annotation for each in (*parameters, *own)}
    return run


def _has_kubeconfig() -> bool:
    from limpet.kubernetes.access.kubeconfig import find_kubeconfig

    return bool(find_kubeconfig())


@dataclass(frozen=True, slots=True)
class _There:
    """Where a command is to run, as a person said it."""

    kubeconfig: Path | None
    context: str
    namespace: str
    node: str


_OWN = ("node", "kubeconfig", "context", "namespace")


def words_of(invocation: typer.Context) -> list[str]:
    """The command as it was given, without what says where it runs."""
    options: list[str] = []
    arguments: list[str] = []
    for each in invocation.command.params:
        name = each.name or ""
        source = invocation.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in _OWN:
            continue
        value = invocation.params[name]
        if each.param_type_name == "argument":
            arguments.append(str(value))
        elif value is True:
            options.append(each.opts[0])
        else:
            options.append(f"{each.opts[0]}={value}")
    return [*invocation.command_path.split(), *options, *(["--", *arguments] if arguments else ())]


def _run_there(there: _There, words: Sequence[str]) -> int:
    """The exit code there. Raises: LimpetError."""
    # Here: only who asks an API server waits for TLS and YAML to be loaded.
    from limpet.kubernetes.access.kubeconfig import find_access
    from limpet.kubernetes.client import Client

    access = find_access(there.kubeconfig, context=there.context)
    client = Client(access, answer_s=_ANSWER_S)

    async def work() -> int:
        try:
            return await _ask(client, there.namespace, there.node, words)
        finally:
            client.close()
            await asyncio.sleep(0)  # closed connections get their turn to end

    return asyncio.run(work())


async def _ask(client: Client, namespace: str, node: str, words: Sequence[str]) -> int:
    from limpet.base.http.connection import LinkError, SilenceError
    from limpet.kubernetes.errors import StatusError
    from limpet.kubernetes.exec import ExecStream, run_in_pod

    printers = {
        ExecStream.STDOUT: _Printer(sys.stdout),
        ExecStream.STDERR: _Printer(sys.stderr),
    }
    what = f"ask the agent of node {node}"
    cut_off = (
        "the API server does not get to the kubelet of that node: is it cut off? On the node "
        f"itself `{' '.join(words)}` works all the same"
    )
    try:
        pod = await _agents_pod(client, namespace, node)
        return await run_in_pod(
            client,
            pod,
            _CONTAINER,
            words,
            lambda stream, data: printers[stream].put(data),
            silence_s=_SILENCE_S,
        )
    except StatusError as error:
        said = " ".join(error.status.message.split())
        if error.status.code == 403:
            raise LimpetError(
                f"{what}: {said} (it takes the right to list pods, and to get and create "
                f"pods/exec, in namespace {namespace}: administrators of the cluster have it, and "
                "whoever has it may do anything on all nodes)"
            ) from error
        if error.status.code >= 500:
            raise LimpetError(f"{what}: {said} ({cut_off})") from error
        raise LimpetError(f"{what}: {said}") from error
    except SilenceError as error:
        raise LimpetError(f"{what}: {error} ({cut_off})") from error
    except LinkError as error:
        raise LimpetError(f"{what}: {error}") from error
    finally:
        for each in printers.values():
            each.end()


async def _agents_pod(client: Client, namespace: str, node: str) -> Pod:
    """The one that runs on `node`. Raises: LimpetError."""
    from limpet.kubernetes.lists import Selection
    from limpet.kubernetes.pods import PODS

    chosen = Selection(namespace, labels=_AGENTS, fields=f"spec.nodeName={node}")
    found = [pod async for page in client.pages(PODS, selection=chosen) for pod in page.items]
    pods = [pod for pod in found if not pod.metadata.deletion_timestamp]
    for pod in pods:
        if pod.status.phase == "Running":
            return pod
    what = f"ask the agent of node {node}"
    for pod in found:
        states = [each.state.waiting for each in pod.status.container_statuses or ()]
        why = next((f", {each.reason}" for each in states if each is not None), "")
        raise LimpetError(
            f"{what}: its pod {pod.metadata.name} does not run ({pod.status.phase}{why}; kubectl "
            f"-n {namespace} describe pod {pod.metadata.name})"
        )
    raise LimpetError(f"{what}: {await _why_none(client, namespace, node)}")


async def _why_none(client: Client, namespace: str, node: str) -> str:
    from limpet.kubernetes.errors import NotFoundError, StatusError
    from limpet.kubernetes.kinds.objects import Resource, Viewed
    from limpet.kubernetes.pods import AGENT_LABEL, BY_SYSTEMD

    try:
        found = await client.get(Resource("Node", "nodes", Viewed), node)
    except NotFoundError:
        return f"the cluster has no Node of that name (kubectl get nodes; {client.access.source})"
    except StatusError:
        labels = {}  # whoever may run commands in a namespace need not read Nodes
    else:
        labels = found.metadata.labels or {}
    if labels.get(AGENT_LABEL) == BY_SYSTEMD:
        return (
            f"it is a service of the node (label {AGENT_LABEL}={BY_SYSTEMD}), which the API "
            "server does not get at: log in on that node and ask there, without --node"
        )
    return (
        f"there is no pod of it on that node in namespace {namespace} (is it a service of the "
        "node? Then ask there, without --node. Is Limpet elsewhere? --namespace says where. "
        f"kubectl -n {namespace} get daemonsets,pods -o wide tells more)"
    )


class _Printer:
    """Text as it comes in; what a node says moves no cursor of a person's terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._out = Passage(stream)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def put(self, data: bytes) -> None:
        self._out.write(self._decoder.decode(data))

    def end(self) -> None:
        self._out.write(self._decoder.decode(b"", final=True))
