#!/usr/bin/env bash
# Lays out what an image adds to its base for a program: the program as /opt/megacpp/program, and the
# shared libraries that it needs and the base lacks, where they stood.
#
#   image_files.sh PROGRAM IMAGE [BASE]
#
#   IMAGE   the folder to lay out; it must be empty or absent
#   BASE    the root of the base image; what is there already is left out
#
# MPI loads modules by name, which ldd does not see: with MPI those of its packages come along, too. The
# largest twenty files are listed with their bytes, and the sum.
set -euo pipefail
export LC_ALL=C

fail() {
  echo "image_files: $1" >&2
  exit "${2:-1}"
}
[ $# = 2 ] || [ $# = 3 ] || fail 'give PROGRAM IMAGE [BASE]' 2
program=$1 image=$2 base=${3:-/nonexistent}
[ -x "$program" ] && [ -f "$program" ] || fail "$program is no program" 5
[ $# = 2 ] || [ -d "$base" ] || fail "there is no folder $base, which should be the base image's root" 5
[ ! -e "$image" ] || [ -z "$(ls -A "$image")" ] || fail "the folder $image is not empty" 6

# needed FILE...: the libraries that these load, as the loader finds them
needed() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $2 == "=>" && $3 == "not" { print "missing " $1 }' | sort -u
}
# place FILE: copies a file, or a link with what it points to, to its real folder
place() {
  local file folder
  file=$1
  while :; do
    folder=$(realpath -- "$(dirname -- "$file")")
    file=$folder/$(basename -- "$file")
    if [ ! -e "$base$file" ] && [ ! -e "$image$file" ]; then
      mkdir -p "$image$folder"
      cp -P --preserve=mode,timestamps -- "$file" "$image$file"
    fi
    [ -L "$file" ] || break
    file=$(cd "$folder" && realpath -s -- "$(readlink -- "$file")")
  done
}

install -D -m 755 -- "$program" "$image/opt/megacpp/program"
mapfile -t libraries < <(needed "$program")
owners=()
if command -v dpkg-query >/dev/null; then
  for library in "${libraries[@]}"; do
    [[ $library =~ /lib(mpi|mpich|open-rte|open-pal|pmix)[.]so ]] || continue
    owner=$(dpkg-query -S "$(realpath -- "$library")" 2>/dev/null | sed 's/:.*//; q')
    [ -z "$owner" ] || owners+=("$owner")
  done
fi
if [ ${#owners[@]} -gt 0 ]; then
  owners+=(openmpi-common libpmix2 libpmix2t64)
  mapfile -t modules < <(dpkg-query -L "${owners[@]}" 2>/dev/null |
    grep -E '/(openmpi3?|pmix2?)/(.*/)?((pmix_)?mca_[^/]*[.]so|[^/]*[.]conf|help-[^/]*[.]txt)$' | sort -u)
  for file in "${modules[@]}"; do place "$file"; done
  mapfile -t loaded < <(printf '%s\n' "${modules[@]}" | grep '[.]so$')
  mapfile -t libraries < <(needed "$program" "${loaded[@]}")
fi
for library in "${libraries[@]}"; do
  [[ $library != missing* ]] || fail "the library ${library#missing } is not on this machine" 8
  place "$library"
done
# Hosts of HTTPS are checked by these.
certificates=/etc/ssl/certs/ca-certificates.crt
[ ! -f "$certificates" ] || place "$certificates"
find "$image" -type f -printf '%10s  /%P\n' | sort -rn | awk 'NR <= 20'
printf '%10s  bytes in all\n' "$(du -sb -- "$image" | cut -f 1)"
