# Sourced by scripts whose tests need files of packages that pip installs, and nothing of their Python.
#
# pip_packages VENVS NAME WANTED WHAT : makes the virtual environment VENVS/NAME with the packages that the file
# WANTED lists, without those that they ask for, or finds it there. Exits with 77, and says that WHAT is lacking,
# where it cannot be made (no network, no space).
pip_packages() {
  local folder=$1/$2 wanted=$3 what=$4
  mkdir -p "$1"
  ! cmp -s "$wanted" "$folder/requirements.installed" || return 0
  if ! { python3 -m venv "$folder" &&
    "$folder/bin/python" -m pip install --disable-pip-version-check --no-cache-dir --no-compile --no-deps -r "$wanted"; }; then
    echo "$what: pip's words are above"
    exit 77
  fi
  cp "$wanted" "$folder/requirements.installed"
}
