"""The whole network as the controller knows it: records, and what nodes report of their ways.

Call `making.PictureMaker`; `listed` asks an API server for Services, `reported` keeps what nodes
tell. `nodes`, `pairs`, `policies`, `services` and `silence` are pure. Must not change anything that
it looks at. Must not import `controller.api`, `admin` or `store`.
"""
