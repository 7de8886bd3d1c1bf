"""What an API server says that is no good is kept for a while, and told in a few words."""

from __future__ import annotations

import pytest

from limpet.base.bounds.servers import UNREAD_CAUSE
from limpet.base.bounds.words import NAME
from limpet.cloud.second_road.api_server import ApiServerSource
from limpet.cluster.documents import Sealed
from limpet.cluster.kinds import PRESENCE
from limpet.cluster.replica import Outcome
from limpet.kubernetes.access.access import plain_access
from tests.beds.member import member_without_disk


@pytest.fixture
def kept() -> ApiServerSource:
    """Of a node that hears no API server yet."""
    own = member_without_disk()
    return ApiServerSource(own, lambda: plain_access("http://127.0.0.1:9"), random=lambda: 0.5)


def test_of_what_may_be_good_later_nothing_is_kept_that_is_too_large_ever_to_be(
    kept: ApiServerSource,
) -> None:
    for name, size in (("small", PRESENCE.most_bytes), ("large", PRESENCE.most_bytes + 1)):
        kept._judge(("presence", name), Sealed("presence", bytes(size), b""), Outcome.BAD)

    assert list(kept._untaken.early) == [("presence", "small")]


def test_names_and_causes_of_what_cannot_be_used_are_told_in_a_few_words(
    kept: ApiServerSource,
) -> None:
    kept._note("presence", "n" * 100_000, "c" * 100_000)

    (unusable,) = kept._unusable.items()
    assert sum(map(len, unusable)) < NAME.most + UNREAD_CAUSE.most + 100
    kept._note("presence", "n" * 100_000, "")
    assert not kept._unusable
