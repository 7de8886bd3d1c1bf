"""`limpet bundle`: what a release brings, with what one site needs of its own, in one file.

`site_bundle.write_site_bundle` checks a release's bundle (`release.bundle` makes it;
docs/release.md says what is in it) and writes another one, with what `site_files` gives. The
machine that unpacks it runs its `install.sh`, which is deploy/bundle/install.sh. Nothing here asks
a network.
"""
