#!/bin/bash
# A test host: namespaces that make one machine of the lab out of a part of
# this one. Started by lab.go; nothing of it outlives its standard input.
#
#   host.sh NAME DIR BIND...
#
# NAME  of its control groups    DIR  an empty folder on a disk
# BIND  folders of this machine that the host sees as they are
#
# Three roles of one script. The outermost tidies up, whatever ends the test;
# "lan" is a wire with a visitor on it, at 10.99.0.254, who stands for the
# internet too, at 203.0.113.7; "head" is process 1 of
# the host, at 10.99.0.1. The host's file system is this machine's under an
# overlay: what it writes lands in DIR/scratch/upper, and is gone with it; what
# is large or lasts lands in DIR/disk.
#
# A further host on the wire of another one is told by the environment: ADDRESS
# is its own, HOSTNAME_HERE its name, and WIRE a process in the other's "lan".
# KEPT is a folder that template.go wrote: the host then begins with the files in it,
# its machine-id among them.
set -euo pipefail

controllers() {
  awk '$3 == "cgroup" { print $2 }' /proc/self/mounts | grep ^/sys/fs/cgroup/ | sort -u
}

# Joins a group of our own in every controller, so that the host's view of
# control groups can begin there.
join_cgroups() {
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup/$1"
    sed 's/^/+/; s/ / +/g' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control || true
    echo "$BASHPID" >"/sys/fs/cgroup/$1/cgroup.procs"
    return
  fi
  for controller in $(controllers); do
    mkdir -p "$controller/$1"
    for file in cpuset.cpus cpuset.mems; do
      [ ! -f "$controller/$file" ] || cat "$controller/$file" >"$controller/$1/$file"
    done
    echo "$BASHPID" >"$controller/$1/cgroup.procs"
  done
}

leave_cgroups() {
  local base
  for base in $(controllers) /sys/fs/cgroup; do
    [ ! -d "$base/$1" ] || find "$base/$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
}

# The control groups of the host, mounted as on this machine.
mount_cgroups() {
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
    # Version 2 forbids processes beside the groups that Kubernetes makes.
    mkdir "$1/sys/fs/cgroup/host"
    echo 1 >"$1/sys/fs/cgroup/host/cgroup.procs"
    return
  fi
  mount -t tmpfs -o mode=0755 tmpfs "$1/sys/fs/cgroup"
  for controller in $(controllers); do
    local name=${controller##*/} options=${controller##*/}
    [ "$name" != systemd ] || options=none,name=systemd
    mkdir "$1/sys/fs/cgroup/$name"
    mount -t cgroup -o "$options" cgroup "$1/sys/fs/cgroup/$name"
  done
}

# Device files of the host's own: a program that makes or removes some does so
# here only. NVIDIA's stay outside; the host is one without a card.
make_devices() {
  mount -t tmpfs -o mode=0755 tmpfs "$1"
  tar -C /dev --one-file-system --exclude='./nvidia*' --exclude='./pts/*' --exclude='./shm/*' -cf - . | tar -C "$1" -xf -
  mkdir -p "$1/pts" "$1/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$1/pts"
  ln -sfn pts/ptmx "$1/ptmx"
  mount -t tmpfs -o mode=1777 tmpfs "$1/shm"
}

head() {
  local scratch=$dir/scratch root=$dir/scratch/root
  mount --make-rprivate /
  mount -t overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" overlay "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  # The host has never seen gpulab, also where this machine is a lab itself.
  [ -n "${KEPT:-}" ] || rm -rf "$root"/etc/{gpulab,rancher,systemd/system/{,*.wants/}gpulab.service} "$root"/root/.kube \
    "$root"/var/lib/cni "$root"/var/log/{containers,pods}
  make_devices "$root/dev"
  mount -t tmpfs -o mode=0755 tmpfs "$root/run"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  local folder
  for folder in /var/lib/gpulab /var/lib/kubelet; do
    mkdir -p "$dir/disk$folder" "$root$folder"
    mount --bind "$dir/disk$folder" "$root$folder"
  done
  for folder in "$@"; do
    mkdir -p "$root$folder"
    mount --bind "$folder" "$root$folder"
  done
  mount_cgroups "$root"
  # No name server of this machine: a test neither needs nor asks one.
  rm -f "$root/etc/resolv.conf"
  echo "nameserver 10.99.0.254" >"$root/etc/resolv.conf"
  # A machine of its own, rather than a copy of this one's disk.
  if [ -n "${WIRE:-}" ]; then
    hostname "$HOSTNAME_HERE"
    if [ -z "${KEPT:-}" ]; then
      echo "$HOSTNAME_HERE" >"$root/etc/hostname"
      rm -f "$root"/etc/machine-id "$root"/var/lib/dbus/machine-id
      tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
    fi
  fi
  # Whatever packages this machine has do not join in when certificates change;
  # Java's would write other bytes each time.
  [ ! -d "$root/etc/ca-certificates/update.d" ] || mount -t tmpfs -o mode=0755 tmpfs "$root/etc/ca-certificates/update.d"
  mkdir "$root/run/outside"
  cd "$root"
  pivot_root . run/outside
  umount -l /run/outside
  rmdir /run/outside
  mount --make-rshared /
  echo ready
  exec 0</dev/null 1>&2
  while :; do
    sleep infinity &
    wait $! || true
  done
}

# A disk of the host's own, empty as a new machine's. It goes in one piece, where
# a folder's files would go one by one; and ext4 is slow for minutes at making
# files where many were removed. Where there is no loop device, a folder does.
make_disk() {
  mkdir -p "$1"
  if [ -n "${KEPT:-}" ] && [ -d "$KEPT/disk" ]; then
    cp -a --reflink=auto "$KEPT/disk/." "$1"
  elif [ -n "${KEPT:-}" ]; then
    cp --reflink=auto --sparse=always "$KEPT/disk.img" "$1.img"
    mount -o loop "$1.img" "$1"
  else
    truncate -s 64G "$1.img" && mkfs.ext4 -q -m 0 -E lazy_itable_init=1,lazy_journal_init=1 "$1.img" &&
      mount -o loop "$1.img" "$1" || rm -f "$1.img"
  fi
}

lan() {
  mount --make-rprivate /
  make_disk "$dir/disk" 1>&2
  # An overlay's upper folder may not lie within its lower one, hence a file
  # system of its own; large and lasting things have their place on the disk.
  mount -t tmpfs -o mode=0755 tmpfs "$dir/scratch"
  mkdir "$dir"/scratch/{upper,work,root}
  [ -z "${KEPT:-}" ] || tar -C "$dir/scratch/upper" --xattrs --xattrs-include='*' -xpf "$KEPT/upper.tar"
  ip link set lo up
  # Addresses appear at once, without a second in which Linux looks for another machine that has them.
  [ ! -d /proc/sys/net/ipv6 ] || echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
  ip link add br0 type bridge
  if [ -z "${WIRE:-}" ]; then
    ip addr add 10.99.0.254/24 dev br0
    # Beyond the default route lies an address that is nobody's in private.
    ip addr add 203.0.113.7/32 dev br0
  else
    # A cable to the other wire's bridge.
    ip link add "to${ADDRESS##*.}" type veth peer name up0
    ip link set "to${ADDRESS##*.}" netns "$WIRE"
    nsenter -t "$WIRE" -n ip link set "to${ADDRESS##*.}" master br0 up
    ip link set up0 master br0 up
  fi
  ip link set br0 up
  exec 3< <(exec unshare --net --mount --pid --cgroup --uts --fork --kill-child "$BASH" "$0" head "$name" "$dir" "$@")
  local unshare=$! ready host
  # Also where the test is killed before the host is ready, and nobody reads what is said here.
  trap "kill -KILL $unshare 2>/dev/null; wait $unshare || true" EXIT
  read -r ready <&3 || { echo "host.sh: the host did not start" >&2; return 1; }
  host=$(pgrep -P $unshare)
  ip link add lan1 type veth peer name eth0 netns "$host"
  ip link set lan1 master br0 up
  nsenter -t "$host" -n -- "$BASH" -euc '
    ip link set lo up
    ip addr add "$0/24" dev eth0
    ip link set eth0 up
    ip route add default via 10.99.0.254
    echo 1 >/proc/sys/net/ipv4/ip_forward' "${ADDRESS:-10.99.0.1}"
  # A browser drops what it is loading when another address of its computer appears.
  for _ in $(seq 100); do
    [ -d /proc/sys/net/ipv6 ] && [ -z "$(ip -6 -o addr show dev br0 scope link)" ] || break
    sleep 0.02
  done
  echo "$BASHPID $host"
  # Until the test ends, or is ended.
  while read -r _; do :; done
}

# To write where nobody reads is an error, and no reason to die at once.
trap : PIPE
role=$1
case $role in
head | lan)
  name=$2 dir=$3
  shift 3
  "$role" "$@"
  ;;
*)
  name=$1 dir=$2
  mkdir -p "$dir/scratch"
  trap '' INT TERM HUP
  (
    join_cgroups "$name"
    exec unshare --net --mount "$BASH" "$0" lan "$@"
  ) || echo "host.sh: the test host ended with $?" >&2 || true
  for _ in $(seq 100); do
    leave_cgroups "$name"
    compgen -G "/sys/fs/cgroup/*/$name" >/dev/null || [ -d "/sys/fs/cgroup/$name" ] || break
    sleep 0.1
  done
  rm -rf --one-file-system "$dir"
  ;;
esac
