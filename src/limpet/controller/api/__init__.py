"""The HTTPS API of the controller, and the feed of changes to those who watch.

Bodies are as `cluster.api` says.
"""
