"""A page that shows the network: `limpet ui`, a process of its own beside an agent or a controller.

Call `server.serve`; a `live.source.PictureSource` is whom it asks; `access` is who may look and
act; `live` keeps the latest picture and tells browsers what changed. Pages are made here
(`templates`) and need no other host. Must not import `cli`: what of it is shown is passed in.
"""
