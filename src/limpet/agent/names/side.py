"""What an agent writes for the process that answers names: Services, where this node serves none
itself, and which nodes and pods are near or known to be dead. It holds that process's sockets, too,
while a pod of it has ended and the next one has not begun.

In memory only where names are answered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from limpet.base.disk import refusals
from limpet.base.errors import LimpetError
from limpet.base.settings import Folders, SourceSettings
from limpet.base.timer import Timer
from limpet.cloud.second_road.api_server import find_api_server
from limpet.cloud.workloads.change_journal import ChangeJournal
from limpet.cloud.workloads.service_source import ServiceSource, load_catalog
from limpet.dns.handover.held import SocketHolder
from limpet.services.kept import JOURNAL_FILE, KEPT_FILE
from limpet.services.kept_here import HERE_FILE, SAY_AGAIN_S, encode_here
from limpet.services.rotation import Here

_log = structlog.get_logger("names")


class NamesSide:
    """Runs on the event loop. What the disk refuses is told, and tried again with the next news."""

    def __init__(
        self, run_dir: Path, here: Callable[[], Here], source: ServiceSource | None = None
    ) -> None:
        """`here`: what is known at this moment. `source`: None: who serves Services keeps them."""
        self._path = run_dir / HERE_FILE
        self._here = here
        self._source = source
        self._holder = SocketHolder(run_dir)
        self._told: Here | None = None
        self._trouble = ""
        self._timer = Timer("names", self._say)

    def begin(self) -> None:
        """From now on it is said."""
        self._say()
        try:
            self._holder.start()
        except LimpetError as error:
            _log.warning("nobody holds the sockets of a pod that ends", error=str(error))

    def start(self) -> None:
        if self._source is not None:
            self._source.start()

    async def stop(self) -> None:
        if self._source is not None:
            await self._source.stop()

    def close(self) -> None:
        """What was said last is forgotten by who reads it, after a while."""
        self._timer.stop()
        self._holder.close()

    def network_changed(self) -> None:
        if self._source is not None:
            self._source.network_changed()

    def look_around(self) -> None:
        """What is known of nodes or pods may be other than before."""
        if self._here() != self._told:
            self._say()

    @property
    def is_due(self) -> bool:
        """It is said again after a while, whether something changes or not."""
        return self._timer.is_set

    def _say(self) -> None:
        here = self._here()
        fresh = self._path.with_name(f".{HERE_FILE}.new")
        try:
            with refusals("write", self._path):
                fresh.write_bytes(encode_here(here, time.monotonic()))
                os.replace(fresh, self._path)
        except LimpetError as error:
            if str(error) != self._trouble:
                _log.warning("names are answered without what is near", error=str(error))
            self._trouble = str(error)
            self._timer.set_in(SAY_AGAIN_S)
            return
        self._told, self._trouble = here, ""
        if here.silent or here.gone:
            self._timer.set_in(SAY_AGAIN_S)
        else:
            self._timer.stop()


def source_of_names(
    folders: Folders, settings: SourceSettings, random: Callable[[], float]
) -> ServiceSource:
    """Services are heard and kept, for names alone. Raises: LimpetError."""
    path = folders.cluster_dir / KEPT_FILE
    catalog, journal = load_catalog(path), ChangeJournal(folders.run_dir / JOURNAL_FILE)
    journal.replay(catalog)
    return ServiceSource(
        catalog,
        path,
        partial(find_api_server, settings),
        tell=lambda _names, _why: None,
        random=random,
        journal=journal,
    )
