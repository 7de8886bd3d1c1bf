"""Keeps others' FORWARD chains open, beside the rounds: looking at them may start iptables."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import structlog

from limpet.base.errors import LimpetError
from limpet.base.timer import Timer
from limpet.datapath.node.forward import HandleNftables, ensure_forward_accept

_log = structlog.get_logger("forward")

_AFTER_S = 0.02
"""A request that has caused the round is answered meanwhile."""
FORWARD_FILE = "forward-rules"
"""In the agent's run folder: others' chains may have rules of ours."""


def forward_keeper(run_dir: Path, *, is_wanted: bool) -> ForwardKeeper | None:
    """None: nobody asks for rules, and no agent of before has put any since the last boot."""
    noted = run_dir / FORWARD_FILE
    return ForwardKeeper(noted, is_wanted=is_wanted) if is_wanted or noted.exists() else None


class ForwardKeeper:
    """Runs on the event loop; the work is done in a thread of its own, in the same namespace."""

    def __init__(self, noted: Path, *, is_wanted: bool) -> None:
        """`noted`: a file that is there as long as there may be rules. `is_wanted`: else those of
        an agent of before go."""
        self._noted = noted
        self._is_wanted = is_wanted
        self._is_over = False
        self.trouble = ""
        """Why another's chain may drop what our links forward; empty: none does."""
        self._links: frozenset[str] = frozenset()
        self._nft: HandleNftables | None = None
        """The thread's."""
        self._working: Future[bool] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer = Timer("forward rules", self._begin)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forward")

    def look(self, links: Collection[str]) -> None:
        """The chains let these links through soon, whoever has changed them."""
        if self._is_over:
            return
        self._links = frozenset(links if self._is_wanted else ())
        self._idle.clear()
        self._timer.set_in(_AFTER_S)

    async def settled(self) -> None:
        """Returns when all that was asked for is done, or has failed."""
        await self._idle.wait()

    def close(self) -> None:
        """The rules stay."""
        self._timer.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        if self._working is not None:
            self._timer.set_in(_AFTER_S)
            return
        loop = asyncio.get_running_loop()

        def tell(done: Future[bool]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._done, done)

        self._working = self._thread.submit(self._work, self._links)
        self._working.add_done_callback(tell)

    def _work(self, links: frozenset[str]) -> bool:
        if self._nft is None:
            self._nft = HandleNftables()
        if self._is_wanted:
            with contextlib.suppress(OSError):  # rules that nobody remembers are better than none
                self._noted.touch(mode=0o600)
            return ensure_forward_accept(self._nft, links)
        changed = ensure_forward_accept(self._nft, links)
        self._nft.close()
        self._nft = None
        with contextlib.suppress(OSError):
            self._noted.unlink(missing_ok=True)
        return changed

    def _done(self, done: Future[bool]) -> None:
        self._working = None
        if not self._timer.is_set:
            self._idle.set()
        if done.cancelled():
            return
        try:
            changed = done.result()
        except LimpetError as error:
            self.trouble = str(error)
            _log.warning("others' FORWARD chains are not as they should be", error=self.trouble)
            return
        self.trouble = ""
        self._is_over = not self._is_wanted
        if changed and self._is_over:
            _log.info("allow_forward is off: our rules in others' FORWARD chains were removed")
        elif changed:
            _log.info("another's FORWARD chain drops: let our links through")
