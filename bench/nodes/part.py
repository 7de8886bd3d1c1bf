"""A process that takes part in a measure: it reads lines of JSON, answers each with one, and ends
with its standard input."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.nodes.netns import Netns

_ROOT = Path(__file__).resolve().parents[2]


async def serve(answer: Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]) -> None:
    """In the process: until nothing more is asked."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        print(json.dumps(await answer(json.loads(line))), flush=True)


class Part:
    """Who has started it. It has answered once when the constructor returns."""

    def __init__(self, netns: Netns, arguments: list[str], undo: ExitStack) -> None:
        """`arguments`: the module, and what it is given."""
        self._name = arguments[0]
        with netns.inside():
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=_ROOT,
            )
        undo.callback(self._stop)
        self.ask({})

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, question: dict[str, Any]) -> Any:
        """Raises: RuntimeError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} has ended")
        return json.loads(line)

    def _stop(self) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
