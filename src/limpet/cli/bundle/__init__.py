"""`limpet bundle`: what a release brings, with what one site needs of its own, in one file.

Call `site_bundle.write_site_bundle`, which checks a release's bundle (`release.bundle` makes it;
docs/release.md says what is in it) and writes another one, with what `site_files` gives. The
machine that unpacks it runs its `install.sh`, which is deploy/bundle/install.sh. Nothing here asks
a network. Imports nothing of Limpet but `base` and `cloud.https`.
"""
