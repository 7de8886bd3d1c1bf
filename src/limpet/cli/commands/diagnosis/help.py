"""`limpet help`: the documentation, on the node and without a network."""

from __future__ import annotations

from typing import Annotated

import typer

from limpet.cli.answers import Topic, Topics, TopicShown
from limpet.cli.options import Format
from limpet.cli.output import Output, put_markdown, show, show_table
from limpet.cli.topics.pages import TopicPage, find_docs, look_up, read_pages

_APART = ("decisions/", "commands/")
"""Listed by a line of their own: they are many."""


def help(
    topic: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="What to read: a page, PAGE#SECTION, a command, or what doctor calls a finding.",
        ),
    ] = None,
    output: Format = Output.TABLE,
) -> None:
    """The documentation, as it belongs to this version; without TOPIC the list of its pages."""
    pages = read_pages(find_docs())
    if topic:
        text = look_up(pages, " ".join(topic))
        if output.is_document:
            show(TopicShown(topic=" ".join(topic), markdown=text), output)
        else:
            put_markdown(text)
        return
    rows = [{"topic": page.name, "about": page.title} for page in _listed(pages)]
    rows += [
        {"topic": "COMMAND", "about": "such as `limpet help ipam list`"},
        {"topic": "FINDING", "about": "such as `limpet help agent-silent`; `limpet help doctor`"},
        {"topic": "decisions/NAME", "about": "why it is so: `limpet help decisions/nat`"},
    ]
    answer = Topics(topics=[Topic(topic=each.name, about=each.title) for each in pages.values()])
    show_table(answer, output, rows, nothing="there is no documentation")


def _listed(pages: dict[str, TopicPage]) -> list[TopicPage]:
    return [page for page in pages.values() if not page.name.startswith(_APART)]
