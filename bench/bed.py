"""Where the two sides of a measure stand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.nodes.node import Node
from bench.nodes.plugins import Limpet, Plugin, Reference


@dataclass
class Bed:
    """Where the sides stand, and what a measure had to say beside its figures."""

    disk_folder: Path
    reference_folder: Path
    reference_only: bool
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def sides(self) -> Iterator[list[Plugin]]:
        """Both plugins on fresh nodes, shown to do the same work; Limpet first if there."""
        with ExitStack() as undo:
            sides: list[Plugin] = []
            if not self.reference_only:
                sides.append(undo.enter_context(self.limpet()))
            node = Node("ref", self.disk_folder)
            undo.callback(node.close)
            sides.append(Reference(node, self.reference_folder))
            for side in sides:
                side.check_its_work()
            yield sides

    @contextmanager
    def limpet(self) -> Iterator[Limpet]:
        """Limpet on a fresh node; what its agent logged is told when something fails."""
        node = Node("limpet", self.disk_folder)
        try:
            plugin = Limpet(node)
            try:
                yield plugin
            except Exception as error:
                error.add_note(plugin.log_tail())
                raise
            finally:
                plugin.close()
        finally:
            node.close()


Samples = dict[str, list[float]]
