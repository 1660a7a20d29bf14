#!/usr/bin/env bash
# A program that mpiexec of MPICH starts, which is unpacked from the packages of Debian or Ubuntu.
#
#     mpich.sh PROGRAM [unittest argument...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$(realpath "$1")
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir packages
libraries=$(apt-cache depends --no-recommends mpich | sed -n 's/.*Depends: *\(lib\(mpich\|slurm\|hwloc\)[0-9a-z]*\)$/\1/p')
# The words that $libraries holds are names of packages.
# shellcheck disable=SC2086
if ! (cd packages && apt-get download -q mpich $libraries) > download 2>&1; then
  echo "mpich.sh: the packages of MPICH cannot be fetched:" && tail -n 3 download
  exit 77
fi
for package in packages/*.deb; do
  dpkg-deb -x "$package" tree
done
cat > mpiexec << EOF
#!/bin/sh
LD_LIBRARY_PATH=$folder/tree/usr/lib/x86_64-linux-gnu exec $folder/tree/usr/bin/mpiexec.hydra -genv LD_LIBRARY_PATH "" "\$@"
EOF
chmod +x mpiexec
python3 "$here/launchers.py" "$program" mpich "$folder/mpiexec" "$@"
