"""Services and EndpointSlices, listed at the API server while somebody looks at the cluster."""

from __future__ import annotations

import asyncio
import time

from limpet.base.errors import LimpetError
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.services import ENDPOINT_SLICES, SERVICES, service_of, slice_of
from limpet.services.catalog import Catalog

LIST_EVERY_S = 10.0
"""At least between two lists, which cost the API server something each."""
_PAGE = 500


class ListedServices:
    """For one event loop. Nothing is asked, and nothing kept up to date, while nobody looks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._listed_at_s = -LIST_EVERY_S
        self._task: asyncio.Task[None] | None = None
        self.catalog = Catalog()
        """As it was listed last."""
        self.why = "the API server is being asked for them"
        """Why there is nothing, or nothing newer; empty: it is as new as it gets."""

    def look(self) -> None:
        """Somebody looks: what is old is listed anew meanwhile."""
        now_s = time.monotonic()
        if now_s < self._listed_at_s + LIST_EVERY_S or not (
            self._task is None or self._task.done()
        ):
            return
        self._listed_at_s = now_s
        self._task = asyncio.create_task(self._list())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _list(self) -> None:
        catalog = Catalog()
        try:
            async for services in self._client.pages(SERVICES, limit=_PAGE):
                for view in services.items:
                    service = service_of(view)
                    if not (service.is_others or catalog.refusal(service)):
                        catalog.put(service)
            async for slices in self._client.pages(ENDPOINT_SLICES, limit=_PAGE):
                for piece in map(slice_of, slices.items):
                    if not catalog.refusal(piece):
                        catalog.put(piece)
        except LimpetError as error:
            self.why = str(error)
            return
        self.catalog, self.why = catalog, ""
