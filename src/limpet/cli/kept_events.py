"""What happened on this node: as its agent tells it, or as it has kept it on the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from limpet.agent.client import ask
from limpet.base.disk import cause
from limpet.base.errors import AgentUnavailable, StorageError
from limpet.base.settings import Folders
from limpet.picture.timeline import Timeline
from limpet.timeline.answer import TimelineQuery, answer
from limpet.timeline.file import FOLDER, read_all


def events_of_node(folders: Folders, tell: Callable[[str], None], **asked: Any) -> Timeline:
    """`asked`: as `timeline.answer.TimelineQuery`. `tell` hears where it is from where no agent
    answers.

    Raises: LimpetError; AgentUnavailable where an answer is to be waited for.
    """
    try:
        return ask(folders.socket, "events", Timeline, **asked)
    except AgentUnavailable as error:
        if asked.get("wait_s"):
            raise
        folder = folders.state_dir / FOLDER
        tell(f"{error}; what it had kept at {folder}:")
        return _of_disk(folder, TimelineQuery(**{**asked, "about": tuple(asked.get("about", ()))}))


def _of_disk(folder: Path, asked: TimelineQuery) -> Timeline:
    try:
        return answer(read_all(folder), asked)
    except OSError as error:
        raise StorageError("read", str(folder), cause(error), hint="sudo limpet events") from error
