"""The whole network as one value, as a node or the controller sees it: what `limpet ui` shows.

Take `picture.Picture`, which is all of it but what is asked for by itself, since that grows with
the square of the cluster: `pair.PairDetail`, and `timeline.Timeline`. `said` is the root of all.
The agent and the controller make these, `web` shows them; values alone, which read no clock.
Imports nothing of Limpet.

Times (`…at_s`) are seconds since 1970 by the clock of whoever tells it, `as_of_s` with them: that
clock may be wrong, so what is shown are differences. An empty text says that there is none.
"""
