#!/usr/bin/env bash
# Start a Slurm of three virtual nodes on this machine, for the tests beside this file.
#
#     tests/slurm/start.sh FOLDER && export SLURM_CONF=FOLDER/slurm.conf FEDMPI_TEST_SLURM=1
#     tests/slurm/stop.sh FOLDER
#
# It needs root, and apt if Slurm is not installed yet. Keys, state, logs and sockets lie in FOLDER, which must be new
# and have a short path; outside of it only the nodes' names are added to /etc/hosts. Each node is a slurmd with a host
# name and a /dev/shm of its own, so ranks on different nodes share no memory, as on a cluster. Prints why it fails.
set -euo pipefail
folder=${1:?usage: start.sh FOLDER}
NODES=(n1 n2 n3)
CPUS=4      # that each node claims to have
GPUS=2      # that each node pretends to have: only CUDA_VISIBLE_DEVICES is set

fail() { echo "start.sh: $*" >&2; exit 1; }

try() {     # `try SECONDS COMMAND...`: until it succeeds
    local left=$(($1 * 5))
    shift
    until "$@"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep .2
    done
}

install() {
    local missing=()
    for command in slurmctld slurmd munged sbatch; do
        command -v "$command" >/dev/null || [ -x "/usr/sbin/$command" ] || missing+=("$command")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    command -v apt-get >/dev/null || fail "there is no ${missing[*]} here, and no apt-get to install it"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge; } \
        >"$folder/apt.log" 2>&1 || fail "apt-get could not install Slurm: $(tail -n 1 "$folder/apt.log")"
}

node() {    # a command in the host name, memory and mounts of a node
    local name=$1
    shift
    # shellcheck disable=SC2016      # the inner shell reads its own arguments
    unshare --uts --ipc --mount --propagation private \
        bash -ec 'hostname "$0"; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; exec "$@"' "$name" "$@"
}

write_configuration() {     # quick to react, so that tests are short
    local port=$((18000 + RANDOM % 500 * 8)) last=${#NODES[@]} i
    for ((i = 0; i < GPUS; i++)); do mknod "$folder/gpu$i" c 1 3; done      # Slurm wants devices: copies of /dev/null
    echo "Name=gpu File=$folder/gpu[0-$((GPUS - 1))]" >"$folder/gres.conf"
    cat >"$folder/slurm.conf" <<END
ClusterName=tests
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
# The default of cred_expire, two minutes, is how long a requeued job would wait for its next start.
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
# Nodes are believed to have the CPUs that they claim; no cgroups and no accounts are needed.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
# The worst case: srun without --mpi starts ranks that do not see each other.
MpiDefault=none
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
KillWait=30
# Longer than KillWait: a node that is busy with killing does not count as lost, which would start its job once more.
MessageTimeout=60
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PropagateResourceLimits=NONE
NodeName=n[1-$last] NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + last))] CPUs=$CPUS RealMemory=4000 Gres=gpu:$GPUS
PartitionName=debug Nodes=ALL Default=YES DefaultTime=30 PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=high Nodes=ALL DefaultTime=30 PriorityTier=9 PreemptMode=OFF
END
}

answers() { timeout 10 scontrol ping 2>/dev/null | grep -q ' UP'; }

all_idle() { [ "$(sinfo --noheader --Node --partition=debug --states=idle 2>/dev/null | wc -l)" = "${#NODES[@]}" ]; }

[ "$(id -u)" = 0 ] || fail "only root can start a Slurm"
[ ! -e "$folder/slurm.conf" ] || fail "$folder is in use"
mkdir -p "$folder/state"
folder=$(cd "$folder" && pwd)
chmod 755 "$folder"
export PATH=$PATH:/usr/sbin:/sbin SLURM_CONF=$folder/slurm.conf
node "${NODES[0]}" true 2>/dev/null || fail "no name spaces for virtual nodes can be made here"
install
write_configuration
for name in "${NODES[@]}"; do      # mpiexec looks the nodes up
    getent hosts "$name" >/dev/null || echo "127.0.0.1 $name # $folder" >>/etc/hosts
done
(umask 077 && head -c 64 /dev/urandom >"$folder/munge.key")
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" 2>"$folder/munged.said" ||
    fail "munged: $(tail -n 1 "$folder/munged.said")"
slurmctld || fail "slurmctld does not start: $(tail -n 1 "$folder/slurmctld.log")"
try 15 answers || fail "slurmctld does not answer: $(tail -n 1 "$folder/slurmctld.log")"
for name in "${NODES[@]}"; do
    mkdir -p "$folder/spool-$name"
    node "$name" slurmd -N "$name" || fail "slurmd of $name does not start: $(tail -n 1 "$folder/slurmd-$name.log")"
done
try 60 all_idle || fail "not all nodes come up: $(sinfo --noheader --Node --format='%N %T' | tr '\n' ' ')"
