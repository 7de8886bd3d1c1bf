"""Services as a node sees them: what is asked for, what serves it, and what is in use here.

Call `Catalog` (every Service and EndpointSlice, by name), `values` (what they say), `rotation`
(which endpoints of a port are used on this node), `headless` (those that have names of their own)
and `doubted` (what a server says that could not hear their nodes). All of it is pure. Imports
nothing of Limpet but `base`: it knows neither an API server nor a kernel.
"""
