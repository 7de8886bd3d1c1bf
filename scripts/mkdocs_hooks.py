"""What `make docs` does to a page: links out of docs/ lead nowhere, so their path is told."""

import re
from typing import Any

_LINK = re.compile(r"\[((?:[^\]\[]|\[[^\]]*\])*)\]\(((?:\.\./)+)([^)#\s]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """`[the manifest](../deploy/limpet.yaml)` becomes `the manifest (deploy/limpet.yaml)`."""
    depth = page.file.src_uri.count("/")

    def told(link: re.Match[str]) -> str:
        text, up, path = link.groups()
        if up.count("../") <= depth:
            return link.group()
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(told, markdown)
