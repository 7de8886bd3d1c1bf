"""The IP controller: grants address segments to nodes and keeps the record of the cluster."""
