#!/usr/bin/env bash
# Fills the templates of this folder from one small file of values.
#
#   render.sh VALUES OUT [NAME...]   writes the filled templates below the folder OUT
#   render.sh --names [NAME...]      prints the variables of the templates, as envsubst takes them
#   render.sh --list                 prints the names of the templates
#
#   VALUES   lines NAME=value, empty lines, and lines that begin with #. A value goes to the end of its
#            line, and quotes are part of it; values.example has all names
#   OUT      a folder, which is made; what is there of the same names is replaced
#   NAME     a template, such as kubernetes/volumes, or a folder of them, such as slurm; by default all
#
# What is wrong is told in one sentence, with exit code 2, and then nothing is written. docs/deploying/README.md
# says what becomes of a value in YAML, in Python and in a script.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/render.py" "$@"
