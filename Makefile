# Everything runs from a fresh checkout on Debian or Ubuntu, as root; see README.md.
py := .venv/bin/python

# Without bytecode every program of a test and every process of pytest compiles what it loads.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: audit demo docs fuzz fuzz-grow fuzz-quick image lock release test test-docs test-kube test-storms test-packages test-ui test-monitoring test-vm compiled properties soak static check bench bench-quick bench-suite format setup clean

demo: setup
	$(py) -m limpet lab demo

# Which files begin first is in tests/order.py.
in_order := --dist loadfile --no-loadscope-reorder
elsewhere := --ignore=tests/shells --ignore=tests/kube --ignore=tests/ui --ignore=tests/monitoring --ignore=tests/packages
storms := tests/faults tests/soak tests/lab/storms tests/lab/thefts
test: setup compiled
	$(py) -m pytest -q -n 6 $(in_order) $(elsewhere) $(addprefix --ignore=,$(storms)) --ignore=tests/docs/test_commands.py tests

# What lasts: kills at any moment, power cuts, full disks, storms of faults, thefts that are played through.
test-storms: setup compiled
	$(py) -m pytest -q -n 6 $(in_order) $(storms)

# Tests are compiled once, not by each of the processes that run them.
compiled: setup
	@[ -e tests/unit/__pycache__ ] || { \
		$(py) -m pytest -q --collect-only tests/unit >/dev/null & \
		$(py) -m pytest -q --collect-only --ignore=tests/unit --ignore=tests/ui tests >/dev/null & wait; }

# Properties by examples that are others each time, and three times as many: `make test` has the same ones each time.
properties: setup compiled
	LIMPET_EFFORT=whole $(py) -m pytest -q -n 2 $(in_order) -m hypothesis tests/unit tests/documents

# Hours. Agents, the controller, relays and tunnels' programs are killed KILLS times under load, in a world of the lab; then
# what `make test` does little of is done whole. A seed is told, and LIMPET_TEST_SEED takes it.
KILLS ?= 10000
soak: setup compiled
	LIMPET_EFFORT=whole KILLS=$(KILLS) $(py) -m pytest -q -s tests/soak
	LIMPET_EFFORT=whole $(py) -m pytest -q -n 5 $(in_order) -m soak $(elsewhere) --ignore=tests/soak tests

# What needs a real Kubernetes. Its programs are built once, into a cache outside of the checkout.
test-kube: setup compiled
	scripts/fetch-kubernetes >/dev/null
	$(py) -m pytest -q -n 2 $(in_order) tests/kube

# Alerts and dashboards at a real Prometheus, Debian's, which is unpacked into build.
test-monitoring: setup compiled
	scripts/fetch-prometheus >/dev/null
	$(py) -m pytest -q -n 2 $(in_order) tests/monitoring

# The page in a real browser, which it installs; it makes the pictures in docs/pictures.
test-ui: setup
	scripts/fetch-chromium
	$(py) -m pytest -q -s tests/ui

# Each command that the pages tell people to type, in worlds of the lab and on machines of its own.
test-docs: setup compiled
	$(py) -m pytest -q -n 3 $(in_order) tests/docs

# Completion and manual pages in zsh, fish and mandoc, which it installs from Debian's packages.
test-shells: setup compiled
	scripts/fetch-shells
	$(py) -m pytest -q -n 2 tests/shells

# What is given out, on fresh Debian 12 and 13 and, for aarch64, under QEMU: see docs/release.md.
test-packages: setup
	scripts/fetch-packaging
	$(py) -m pytest -q -n 2 $(in_order) tests/packages

# All that is given out, into build/release, the same bytes wherever and how often it is made.
release: setup
	scripts/fetch-packaging
	$(py) -m release all

# An OCI archive, build/image/limpet.tar: see docs/decisions/image.md.
image: setup
	$(py) scripts/build-image

# The pages of docs/ as a site, build/site/index.html: no server is needed, and no other host.
docs: setup
	scripts/build-docs

# What this machine's kernel may not have, on Debian's own in a virtual machine: see CONTRIBUTING.md.
vm_tests := $(addprefix tests/datapath/,tunnel/wireguard/test_wireguard_device.py tunnel/wireguard/test_wireguard.py \
	tunnel/test_tunnels.py tunnel/ipsec/test_ipsec.py tunnel/ipsec/test_ipsec_kernel.py overlay/test_overlay.py \
	services/test_sockets.py services/test_socket_affinity.py services/test_connected_sockets.py \
	services/test_socket_upgrade.py services/test_backends_alike.py \
	policy/test_twins.py) tests/faults/test_killed_policies.py \
	-k "test_twins or their_twins_hold or wireguard-kernel or ipsec-kernel or test_ipsec_kernel or (test_ipsec.py and kernel) or changed_peer or test_socket or test_connected or test_backends_alike"

test-vm: setup
	scripts/fetch-wireguard >/dev/null
	scripts/fetch-strongswan >/dev/null
	scripts/vm $(py) -m pytest -q --color=no -p no:cacheprovider -o timeout=600 $(vm_tests)

# What needs no run: formatter, linter, types, import layers.
static: setup
	.venv/bin/ruff format --check src tests bench release
	.venv/bin/ruff check src tests bench release
	.venv/bin/mypy
	.venv/bin/lint-imports

# Exit code 1 for what is known to be vulnerable; `make check` only tells of it.
audit: setup
	scripts/audit

# Versions and checksums of what is installed; upgrade=--upgrade takes the newest.
lock:
	scripts/lock $(upgrade)

check: static
	scripts/audit --tell
	$(py) -m pytest -q -n 2 --dist loadfile tests/unit tests/docs/test_blocks.py tests/docs/test_links.py tests/docs/test_pages.py

# An hour: what grows coverage and what is a fault is left in build/fuzz. See docs/decisions/fuzzing.md.
fuzz: setup
	scripts/fetch-atheris
	$(py) -m tests.fuzz run --seconds 3300
	LIMPET_EFFORT=whole $(py) -m pytest -q tests/fuzz

# A quarter of an hour: what a search reaches beyond the seeds becomes tests/fuzz/corpora/grown.txt, to be committed.
fuzz-grow: setup
	scripts/fetch-atheris
	$(py) -m tests.fuzz run --seconds 600
	$(py) -m tests.fuzz grow

# Two minutes, for .ci/run.
fuzz-quick: setup
	scripts/fetch-atheris
	$(py) -m tests.fuzz run --seconds 110

# Rows beside a real Kubernetes are left out where its programs cannot be built: it says so.
bench: setup
	-scripts/fetch-kubernetes >/dev/null
	-scripts/fetch-kubernetes coredns >/dev/null
	$(py) -m bench

# What a change is likely to hurt, in less than four minutes.
bench-quick: setup
	$(py) -m bench --quick

# k8s-bench-suite's table, for Limpet and for flannel with kube-proxy.
bench-suite: setup
	scripts/fetch-kubernetes >/dev/null
	$(py) -m bench --only suite

format: setup
	.venv/bin/ruff format src tests bench release
	.venv/bin/ruff check --fix src tests bench release

setup:
	@scripts/setup

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
