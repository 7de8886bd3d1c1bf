"""Services, by nftables and at the socket, beside kube-proxy at the same API server."""
