"""What the API server refuses, in the store's words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from limpet.base.errors import LimpetError, StorageError
from limpet.cluster.keys import SealError
from limpet.controller.store.interface import (
    ConflictError,
    TooOldError,
)
from limpet.kubernetes.kinds.resources import ResourceError


@contextlib.contextmanager
def told(operation: str, what: str) -> Iterator[None]:
    """Raises: StorageError for what the API server, or what lies there, does not let be done."""
    try:
        yield
    except (ConflictError, TooOldError, StorageError):
        raise
    except (ResourceError, SealError) as error:
        raise StorageError(operation, what, str(error)) from error
    except LimpetError as error:
        raise StorageError(
            operation, what, str(error), hint="it is tried again; what was answered is in the store"
        ) from error
