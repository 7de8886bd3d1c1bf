"""Makes what is given out, from a checkout: wheels, packages, chart, bundle, SBOM, sums.

    python -m release all          everything, into build/release
    python -m release wheel deb    these

Made twice from one commit, in whatever folder, the files have the same bytes. Says where it goes,
what it is made of and how it is tried: docs/release.md; why so: docs/decisions/packages.md.
"""
