"""Names that are taken from others: those of Kubernetes, and of containers that podman runs.

Each function says what is wrong with a name, as the end of a sentence; an empty text: nothing.
"""

from __future__ import annotations

import re

from limpet.base.bounds.words import LABEL, NAME

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


def name_problem(name: str) -> str:
    """Problem with the name of a pod, namespace, container or node. Kubernetes allows less of most
    of them; podman names pods after its containers, which may have capitals and underscores."""
    if len(name) > NAME.most:
        return f"has more than {NAME.most} characters"
    if not _NAME.fullmatch(name):
        return "is no name (letters, digits, '.', '_' and '-', with a letter or digit first)"
    return ""


def label_problem(key: str, value: str) -> str:
    """Problem with a label, as Kubernetes allows them."""
    prefix, slash, name = key.rpartition("/")
    if not _LABEL.fullmatch(name) or len(name) > LABEL.most:
        return "is no name of a label (63 letters, digits, '.', '_' and '-' at most)"
    if slash and (not _PREFIX.fullmatch(prefix) or len(prefix) > NAME.most):
        return "is no name of a label (before its '/' stands a domain)"
    if value and (not _LABEL.fullmatch(value) or len(value) > LABEL.most):
        return "has a value that no label has (63 letters, digits, '.', '_' and '-' at most)"
    return ""
