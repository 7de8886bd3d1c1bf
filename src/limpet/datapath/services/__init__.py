"""The part of the loop for Services: an nftables table that sends what is for a Service to one of
its endpoints.

Add `ServicesPart` to the loop. `ruleset`, `elements`, `flows`, `plan`, `state` and `diff` are pure;
`apply` touches Linux. Must not import `node`, `overlay`, `policy` or `tunnel`, the other parts, nor
`cloud`.
"""
