"""What `make docs` does to a page: links out of docs/ lead nowhere, so their path is told."""

import re
from typing import Any

from mkdocs.exceptions import PluginError

_LINK = re.compile(r"\[((?:[^\]\[]|\[[^\]]*\])*)\]\(((?:\.\./)+)([^)#\s]+)(?:#[^)\s]*)?\)")

_MARKER = re.compile(r"^( *```\w+) .*$", re.MULTILINE)
"""In which world commands of a block are run (CONTRIBUTING.md): not for readers."""
_LOADS = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*>")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """`[the manifest](../deploy/limpet.yaml)` becomes `the manifest (deploy/limpet.yaml)`."""
    depth = page.file.src_uri.count("/")

    def told(link: re.Match[str]) -> str:
        text, up, path = link.groups()
        if up.count("../") <= depth:
            return link.group()
        return text if path in text else f"{text} (`{path}`)"

    return _MARKER.sub(r"\1", _LINK.sub(told, markdown))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Raises: PluginError for a page that would load something from another host."""
    for tag in _LOADS.findall(output):
        if "//" in tag and 'rel="canonical"' not in tag:
            raise PluginError(f"{page.file.src_uri} loads from another host: {tag}")
    if "```" in output:
        raise PluginError(f"{page.file.src_uri}: a fence is not taken for one")
    return output
