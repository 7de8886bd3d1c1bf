"""Programs are killed by the thousand, under load, in a world of the lab: `make soak KILLS=n`.

`kills` chooses whom, how and when, by a seed. `programs` are started again as a service manager
does it, or by their agent. `pods`, `cloud` and `talk` are the load, and remember what they were
told; `invariants` compares that with what is, whenever a storm is over and nothing happens.
"""
