"""What an API server says when it says no."""

from __future__ import annotations

import pytest

from limpet.base.bounds.servers import RETRY_AFTER_S
from limpet.base.decoding import decode_json
from limpet.kubernetes.errors import refusal
from limpet.kubernetes.kinds.objects import CONFIG_MAPS, Status


@pytest.mark.parametrize(
    ("said", "counts"),
    [("5", 5.0), ("0", None), ("-1", None), ("1" + "0" * 400, float(RETRY_AFTER_S.most))],
)
def test_whatever_number_of_seconds_is_said_it_is_a_refusal(
    said: str, counts: float | None
) -> None:
    status = decode_json(f'{{"code": 429, "details": {{"retryAfterSeconds": {said}}}}}', Status)

    assert refusal("list", CONFIG_MAPS, status).retry_after_s == counts
