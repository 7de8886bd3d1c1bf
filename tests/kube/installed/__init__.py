"""What installs Limpet in a cluster: manifests, chart, image, and pages that say how."""
