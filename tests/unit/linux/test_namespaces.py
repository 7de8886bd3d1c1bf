"""What is said of a namespace that is not there."""

from __future__ import annotations

import pytest

from limpet.base.errors import KernelError
from limpet.linux.namespaces import Namespace


@pytest.mark.parametrize(
    ("path", "has_hint"), [("/proc/4194305/ns/net", True), ("/run/netns/of-nobody", False)]
)
def test_a_namespace_that_is_named_by_a_process_which_is_not_seen_says_why_that_may_be(
    path: str, *, has_hint: bool
) -> None:
    with pytest.raises(KernelError, match="ENOENT") as failure:
        Namespace(path)

    assert ("an agent in a pod" in str(failure.value)) is has_hint
    # go-cni takes a DEL that fails with one of these for one that is done.
    assert not any(each in str(failure.value) for each in ("not found", "no such file"))
