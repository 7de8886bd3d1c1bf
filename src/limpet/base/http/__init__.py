"""HTTP/1.1 as a client, bounded in time and size: to a controller, and to an API server.

Call `connection` and `kept`; `lines` reads streams, `websocket` frames; `tls` is for whoever needs
it. `one_request` is the other side, for what anybody may ask in clear. Imports nothing of Limpet
but `base`: it knows neither of those who are asked.
"""
