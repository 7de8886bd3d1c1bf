"""The picture of the whole cluster: what it leaves out of large clusters, it counts."""

from __future__ import annotations

import pytest

from limpet.controller.picture.making import PictureRecords, make_picture
from limpet.controller.picture.policies import MOST_POLICIES
from limpet.controller.picture.services import MOST_SERVICES
from limpet.picture.workloads import Policy
from limpet.services.catalog import Catalog
from limpet.services.values import Service
from tests.unit.cluster_values import network


@pytest.mark.parametrize("further", [0, 1, 7])
def test_services_and_policies_that_are_left_out_are_counted(further: int) -> None:
    catalog = Catalog()
    for number in range(MOST_SERVICES + further):
        catalog.put(Service("shop", f"web-{number}"))
    policies = tuple(
        Policy(name=f"shop/policy-{number}") for number in range(MOST_POLICIES + 2 * further)
    )
    records = PictureRecords({}, {}, network(), 1, {}, policies, catalog, "")

    picture = make_picture(records, {}, 0.0)

    left_out = picture.also.left_out
    assert (left_out.services, left_out.policies) == (further, 2 * further)
    assert len(picture.workloads.services) == MOST_SERVICES
    assert len(picture.workloads.policies) == MOST_POLICIES
