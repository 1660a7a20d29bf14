#!/usr/bin/env bash
# A program under Slurm: srun with PMIx, with PMI2 and with neither, and a script of sbatch that goes on after a signal.
# The daemons are those of Debian's and Ubuntu's packages, unpacked into a folder, on ports of loopback.
#
#     slurm.sh [--tests FILE.py] PROGRAM [unittest argument...]
#
# FILE.py is what asks, by default slurm.py; its arguments are as that one's.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tests=$here/slurm.py
if [ "$1" = --tests ]; then
  tests=$(realpath "$2")
  shift 2
fi
program=$(realpath "$1")
shift
if [ "$(id -u)" != 0 ]; then
  echo "slurm.sh: Slurm's daemons are started by root alone"
  exit 77
fi
folder=$(mktemp -d)
daemons=()
end() {
  [ ${#daemons[@]} = 0 ] || kill "${daemons[@]}" 2> /dev/null || true
  wait
  rm -rf "$folder"
}
trap end EXIT
cd "$folder"
mkdir tree state spool log
if ! (mkdir packages && cd packages && apt-get download -q slurmctld slurmd slurm-client slurm-wlm-basic-plugins \
  munge libmunge2 libpmix2) > log/download 2>&1; then
  echo "slurm.sh: the packages of Slurm cannot be fetched:" && tail -n 3 log/download
  exit 77
fi
for package in packages/*.deb; do
  dpkg-deb -x "$package" tree
done
libraries=$folder/tree/usr/lib/x86_64-linux-gnu
cat > slurm.conf << EOF
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$((20000 + RANDOM % 10000))
SlurmdPort=$((30000 + RANDOM % 10000))
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
PluginDir=$libraries/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd
NodeName=$(hostname) NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
EOF
daemon() { # the daemon of one package or of the other
  for name in "$1" "$1-wlm"; do
    [ ! -x "tree/usr/sbin/$name" ] || echo "$folder/tree/usr/sbin/$name"
  done
}
export SLURM_CONF=$folder/slurm.conf
slurm=(env LD_LIBRARY_PATH="$libraries:$libraries/slurm-wlm")
"${slurm[@]}" "$(daemon slurmctld)" -D > log/slurmctld.out 2>&1 &
daemons+=($!)
"${slurm[@]}" "$(daemon slurmd)" -D -d "$(daemon slurmstepd)" > log/slurmd.out 2>&1 &
daemons+=($!)
for _ in $(seq 100); do
  state=$("${slurm[@]}" tree/usr/bin/sinfo -h -o %T 2> /dev/null || true)
  [ "$state" != idle ] || break
  sleep 0.2
done
if [ "${state:-}" != idle ]; then
  echo "slurm.sh: the daemons do not serve (${state:-no answer}):" && tail -n 5 log/*
  exit 1
fi
python3 "$tests" "$program" "$folder/tree/usr/bin" "$libraries:$libraries/slurm-wlm" "$@"
