"""A warmed interpreter: `python -m tests.warm.interpreter KIND DESCRIPTOR`.

It never runs what it has loaded. Its children do, and end as any interpreter ends.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pkgutil
import select
import signal
import socket
import sys
from importlib import import_module

import msgspec

from tests.warm.request import CLONE_NEWNS, CLONE_NEWPID, FILES, MOST_BYTES, Request

_MODULES = {
    "agent": (
        *("limpet.agent.main", "limpet.agent.wiring", "limpet.cluster.identity"),
        *("limpet.agent.policies.of_cluster", "limpet.agent.answers.path"),
        *("limpet.agent.answers.services", "limpet.agent.answers.names", "limpet.nat.upnp"),
        *("limpet.agent.answers.cluster", "limpet.cluster.exchange.pod_lookup"),
    ),
    "controller": ("limpet.controller.main",),
    "command": ("limpet.cli.main",),
}
_DONE_WITHOUT = {"agent": ("rich", "typing_extensions"), "controller": ("rich",), "command": ()}
"""As `limpet.__main__` has it."""


class _Children:
    """Those that run, and those that have ended and whose end is still to be read."""

    def __init__(self) -> None:
        self.poll = select.poll()
        self._by_pidfd: dict[int, tuple[int, socket.socket]] = {}
        self._ended: dict[int, tuple[int, socket.socket]] = {}

    def add(self, pid: int, tells: socket.socket) -> None:
        descriptor = os.pidfd_open(pid)
        self._by_pidfd[descriptor] = pid, tells
        self.poll.register(descriptor, select.POLLIN)
        _tell(tells, pid)

    def look(self, descriptor: int) -> None:
        """At what `poll` has told of."""
        if descriptor in self._by_pidfd:
            pid, tells = self._by_pidfd.pop(descriptor)
            self.poll.unregister(descriptor)
            os.close(descriptor)
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            by_itself = ended.si_code == os.CLD_EXITED
            _tell(tells, ended.si_status if by_itself else -ended.si_status)
            self._ended[tells.fileno()] = pid, tells
            self.poll.register(tells, select.POLLIN)  # or its end
        else:
            pid, tells = self._ended.pop(descriptor)
            self.poll.unregister(descriptor)
            tells.close()
            os.waitpid(pid, 0)

    def close(self) -> None:
        for descriptor in self._by_pidfd:
            os.close(descriptor)
        for _, tells in (*self._by_pidfd.values(), *self._ended.values()):
            tells.close()


def _tell(tells: socket.socket, number: int) -> None:
    try:
        tells.send(b"%d" % number, socket.MSG_NOSIGNAL)
    except OSError:
        pass  # nobody wants to know


def _serve(asked: socket.socket) -> Request | None:
    """In a child: what it is to be. In the interpreter: None, when nobody asks any more."""
    children = _Children()
    children.poll.register(asked, select.POLLIN)
    while True:
        for descriptor, _ in children.poll.poll():
            if descriptor != asked.fileno():
                children.look(descriptor)
                continue
            data, files, _, _ = socket.recv_fds(asked, MOST_BYTES, FILES)
            if not data:
                return None
            pid = os.fork()
            if not pid:
                children.close()
                asked.close()
                request = msgspec.json.decode(data, type=Request)
                _become(request, files)
                return request
            children.add(pid, socket.socket(fileno=files.pop()))
            for file in files:
                os.close(file)


def _become(request: Request, files: list[int]) -> None:
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, file in zip(request.namespaces, files[3:-1], strict=True):
        if libc.setns(file, kind):
            raise OSError(ctypes.get_errno(), "setns")
    for file in files:
        os.close(file)
    if CLONE_NEWPID in request.namespaces:
        _stay_outside()
    os.environ.clear()
    os.environ.update(request.environment)
    if CLONE_NEWNS not in request.namespaces:  # else it is in the root of its own
        os.chdir(request.folder)
    if request.new_session:
        os.setsid()
    sys.argv = [sys.modules["limpet.__main__"].__file__ or "", *request.words]
    sys.orig_argv = [sys.executable, "-m", "limpet", *request.words]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _stay_outside() -> None:
    """Of a namespace of processes only children are: returns in one, and ends as it ends."""
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)


def _warm(kind: str) -> None:
    for name in _DONE_WITHOUT[kind]:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in ("limpet.__main__", *_MODULES[kind]):
        import_module(name)
    if kind == "command":
        for folder in ("limpet.cli.commands", "limpet.lab.world", "limpet.lab.measure"):
            for module in pkgutil.walk_packages(import_module(folder).__path__, f"{folder}."):
                import_module(module.name)
    gc.collect()
    gc.freeze()


def main() -> int:
    kind, descriptor = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a person ends the tests, and they end us
    _warm(kind)
    if _serve(socket.socket(fileno=int(descriptor))) is None:
        return 0
    code: int = sys.modules["limpet.__main__"].main()
    return code


if __name__ == "__main__":
    sys.exit(main())
