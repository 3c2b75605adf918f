#!/usr/bin/env bash
# Installs the programs beside Python that some tests need; Debian 12, as root.
# Elsewhere it names what is missing: those tests are skipped, or fail where CI is set.
set -euo pipefail

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v debootstrap >/dev/null || missing+=(debootstrap)
command -v esbuild >/dev/null || missing+=(esbuild)
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
command -v java >/dev/null || missing+=(openjdk-17-jre-headless)
command -v pgbouncer >/dev/null || missing+=(pgbouncer)
command -v systemd-analyze >/dev/null || missing+=(systemd)
command -v terser >/dev/null || missing+=(terser)
command -v tsc >/dev/null || missing+=(node-typescript)
if ((${#missing[@]} == 0)); then
  exit 0
fi

install() {
  export DEBIAN_FRONTEND=noninteractive
  command -v apt-get && ((EUID == 0)) && apt-get -qq update &&
    apt-get -qq install --yes --no-install-recommends "$@"
}

if ! install "${missing[@]}" >/dev/null; then
  echo "tests/machine.sh could not install: ${missing[*]}" >&2
  [[ -z "${CI:-}" ]]
fi
