"""Bytes thrown at whole processes, and at the devices of a node's kernel: each lives on, holds no
more memory than it should, and serves who is honest. For seconds in `make test`, for minutes in
`make fuzz`."""
