#!/usr/bin/env bash
# Stop the Slurm that start.sh started in a folder, with what its jobs have left, and remove the folder: stop.sh FOLDER
set -uo pipefail
folder=$(cd "${1:?usage: stop.sh FOLDER}" && pwd) || exit 1
export PATH=$PATH:/usr/sbin:/sbin SLURM_CONF=$folder/slurm.conf
[ -s "$SLURM_CONF" ] || { echo "stop.sh: there is no Slurm in $folder" >&2; exit 1; }

runs() {    # `runs PID NAME`: the process lives and is that programme, no later one with its number
    [ "$(cat "/proc/$1/comm" 2>/dev/null)" = "$2" ] && ! grep -q '^State:.Z' "/proc/$1/status"
}

stop() {    # `stop PIDFILE NAME`
    local pid
    pid=$(cat "$1" 2>/dev/null) && runs "$pid" "$2" || return 0
    kill "$pid"
    for _ in {1..50}; do
        runs "$pid" "$2" || return 0
        sleep .1
    done
    kill -KILL "$pid"
}

if timeout 10 scontrol ping 2>/dev/null | grep -q ' UP'; then
    timeout 10 squeue --noheader --format=%A | sort -u | xargs -r timeout 10 scancel --full 2>/dev/null
    for _ in {1..50}; do
        [ -n "$(timeout 10 squeue --noheader 2>/dev/null)" ] || break
        sleep .2
    done
fi
for file in "$folder"/slurmd-*.pid; do stop "$file" slurmd; done
stop "$folder/slurmctld.pid" slurmctld
for process in /proc/[0-9]*; do      # a step's daemon that has lost its node
    if runs "${process#/proc/}" slurmstepd && [[ $(readlink "$process/cwd") = "$folder"/* ]]; then
        kill -KILL "${process#/proc/}"
    fi
done
stop "$folder/munged.pid" munged
names=$(grep -v "# $folder\$" /etc/hosts) && printf '%s\n' "$names" >/etc/hosts      # no new file: it may be mounted
rm -rf "$folder"
