#!/bin/sh
# Installs Limpet from this folder on a machine that reaches nobody: the Debian package with all that
# it needs on Debian 12 and 13, else the wheels into /opt/limpet. Starts nothing; README.md says more.
#
#   install.sh             checks every file, and installs
#   install.sh --check     only checks
#   install.sh TOKENFILE   installs, and lets this machine into the site's cluster: where `limpet bundle`
#                          has put in which controllers it has; TOKENFILE has what `limpet token create` printed
set -eu
case ${1-} in -* | /* | '') ;; *) set -- "$PWD/$1" ;; esac
cd "$(dirname "$0")"
say() { printf 'limpet: %s\n' "$*" >&2; }

sha256sum --check --quiet --strict SHA256SUMS || {
    say "a file is not as it was made: nothing was installed (copy the bundle again)"
    exit 1
}
[ "${1-}" != --check ] || { say "all files are as they were made"; exit 0; }
token=${1-}
[ -z "$token" ] || [ -s site/controllers ] || { say "this bundle names no controller: limpet install --controller HOST:PORT --token-file FILE, afterwards"; exit 1; }
[ -z "$token" ] || [ -r "$token" ] || { say "$token, which should have the token, cannot be read"; exit 1; }
[ "$(id -u)" = 0 ] || { say "run this as root"; exit 1; }

limpet=limpet
# shellcheck disable=SC1091
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
if [ -d "debian/$suite" ] && [ -n "$suite" ] && [ "$(dpkg --print-architecture)" = @ARCHITECTURE@ ]; then
    # A mirror of its own, for this one command; the machine's are as they were. What was checked
    # above need not be signed.
    apart=$(mktemp -d)
    trap 'rm -rf "$apart"' EXIT
    mkdir -p "$apart/lists/partial" "$apart/archives/partial"
    echo "deb [trusted=yes] copy:$PWD/debian/$suite ./" >"$apart/sources.list"
    apt() {
        DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o APT::Sandbox::User=root -o Dir::Etc::sourcelist="$apart/sources.list" \
            -o Dir::Etc::sourceparts=- -o Dir::State::lists="$apart/lists" -o Dir::Cache::archives="$apart/archives" \
            -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= "$@"
    }
    apt update
    apt install limpet
else
    python=
    for each in python3.14 python3.13 python3.12 python3.11 python3; do
        if command -v "$each" >/dev/null && "$each" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))'; then
            python=$each
            break
        fi
    done
    [ -n "$python" ] || { say "this needs Python 3.11 to 3.14, and libnftables"; exit 1; }
    "$python" -m venv /opt/limpet
    pip() { /opt/limpet/bin/python -m pip install --quiet --disable-pip-version-check --no-index --find-links wheels "$@"; }
    pip --require-hashes -r wheels/run.lock
    pip --no-deps --force-reinstall limpet
    # By its whole name from here on: sudo of Fedora and RHEL looks at no /usr/local/bin.
    limpet=/usr/local/bin/limpet
    ln -sf /opt/limpet/bin/limpet "$limpet"
fi
if [ -f site/agent.toml ] && [ ! -e /etc/limpet/agent.toml ]; then
    mkdir -p /etc/limpet
    cp site/agent.toml /etc/limpet/agent.toml
    chmod 644 /etc/limpet/agent.toml
fi
version=$("$limpet" --version)
say "installed: $version"
if [ -s site/controllers ]; then
    set --
    while read -r each; do set -- "$@" --controller "$each"; done <site/controllers
    if [ -n "$token" ]; then
        "$limpet" install "$@" --token-file "$token"
    else
        say "next: $limpet install $* --token-file FILE (or: install.sh FILE)"
    fi
else
    say "next: $limpet install, or $limpet controller install"
fi
