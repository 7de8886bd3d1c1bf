"""The table of test_conformance: what the suites that network policies are commonly held to ask
about (the Kubernetes project's own end-to-end cases, and those of generators of policies), in our
own words and with outcomes written down by hand.

Three namespaces x, y, z with pods a, b, c each; labels `ns` and `pod` say which. The rows stand in
a file for each of the things that they are about.
"""

from tests.datapath.policy.conformance import (
    addresses,
    changes,
    hosts,
    names,
    pods,
    ports,
    together,
)

ROWS = tuple(
    row for each in (pods, hosts, addresses, ports, names, together, changes) for row in each.ROWS
)
