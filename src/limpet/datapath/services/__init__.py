"""The part of the loop for Services: an nftables table that sends what is for a Service to one of
its endpoints.

Add `ServicesPart` to the loop. `ruleset`, `elements`, `plan`, `state` and `diff` are pure; `apply`
touches Linux. Must not import other parts, nor who decides where Services are heard of.
"""
