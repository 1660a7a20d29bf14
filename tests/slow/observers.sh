#!/usr/bin/env bash
# Their own readers read what observers write and send: TensorBoard, Prometheus's client and promtool,
# OpenTelemetry's classes, and servers of TLS. Makes its virtual environment in VENVS, or finds it
# there. Exits with 77 where it cannot be made, or Debian's package of Prometheus cannot be fetched.
#   observers.sh SOURCE PROGRAM WORK VENVS
set -euo pipefail

source=$1 program=$2 work=$3 venvs=$4
mkdir -p "$venvs"
if ! "$source/bench/peers/make_venv.sh" "$venvs/observers" "$source/tests/slow/observers.txt"; then
  echo "there are no readers to test against: pip's words are above"
  exit 77
fi
rm -rf -- "$work"
mkdir -p "$work/packages"
if ! (cd "$work/packages" && apt-get download -q prometheus) >"$work/download" 2>&1; then
  cat "$work/download"
  echo "Debian's package of Prometheus, which has promtool, cannot be fetched"
  exit 77
fi
dpkg-deb --fsys-tarfile "$work"/packages/prometheus_*.deb | tar -x -C "$work" ./usr/bin/promtool
"$venvs/observers/bin/python" "$source/tests/slow/observers_peer.py" "$program" "$work" "$work/usr/bin/promtool"
