"""The only folder that touches Linux: netlink, namespaces, nftables, sysctls, raw frames."""
