#!/usr/bin/env bash
# A machine for a test: this machine's own systemd as process 1 of new namespaces (processes, mounts, network, names, control
# groups), with a root of its own. It shares /usr and the store with the machine it runs on, both read-only, and nothing else: /etc,
# /var, /tmp, /run and /dev are its own, in memory, and its network has only a loopback.
#   machine.sh --probe      can it run here? exit code 77 and one line "not run: reason" if not
#   machine.sh DIR CGROUP   starts the machine of DIR: DIR/etc becomes its /etc, DIR/root is where its root is put together.
#                           CGROUP is an empty control group (version 2) for it. Ends when the machine does.
# SPDX-License-Identifier: MIT
set -euo pipefail

case ${1:-} in
  --probe)
    not_run() { echo "not run: $*" >&2; exit 77; }
    [ "$(id -u)" = 0 ] || not_run "a machine for a test needs root"
    for program in unshare nsenter mount umount pivot_root setpriv systemctl systemd-analyze journalctl runuser curl python3; do
      command -v "$program" > /dev/null || not_run "a machine for a test needs $program"
    done
    [ -x /usr/lib/systemd/systemd ] || not_run "a machine for a test needs /usr/lib/systemd/systemd"
    group=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    [ -n "$group" ] || not_run "a machine for a test needs control groups, version 2"
    group=$group$(sed -n 's/^0:://p' /proc/self/cgroup)/probe-$$
    mkdir "$group" 2> /dev/null || not_run "a machine for a test needs a control group of its own, and none can be made here"
    rmdir "$group"
    unshare --pid --mount --cgroup --uts --ipc --net --fork --kill-child sh -ec '
      mount --make-rprivate /
      mount -t proc proc /proc
      mount -t tmpfs probe /mnt
      mount --bind /usr /mnt
      mount -o remount,bind,ro /mnt' 2> /dev/null || not_run "namespaces cannot be made here, or not mounted in"
    exit 0
    ;;
  --inside) shift ;;
  /*)
    [ $# -eq 2 ] || exit 2
    # Before the namespaces are made: the group this shell is in becomes the root of the machine's view.
    echo $$ > "$2/cgroup.procs"
    exec unshare --pid --mount --cgroup --uts --ipc --net --fork --kill-child=KILL bash "$0" --inside "$1"
    ;;
  *) sed -n 2,8p "$0" >&2; exit 2 ;;
esac

work=$1
root=$work/root
mount --make-rprivate /
mount -t tmpfs -o mode=755 machine "$root"
cd "$root"

readonly_bind() { mkdir -p ".$1"; mount --bind "$1" ".$1"; mount -o remount,bind,ro ".$1"; }
readonly_bind /usr
readonly_bind /nix/store
for folder in bin sbin lib lib32 lib64 libx32; do
  if [ -L "/$folder" ]; then ln -s "$(readlink "/$folder")" "$folder"; elif [ -d "/$folder" ]; then readonly_bind "/$folder"; fi
done
# Of what the distribution has under /usr/lib only systemd itself and its units count, and the units only when asked for.
for folder in tmpfiles.d sysctl.d sysusers.d modules-load.d binfmt.d environment.d systemd/system-generators systemd/system-preset \
  systemd/user-environment-generators systemd/user-generators modules; do
  if [ -d "usr/lib/$folder" ]; then mount -t tmpfs -o ro,mode=755 none "usr/lib/$folder"; fi
done
mkdir units
cp -a usr/lib/systemd/system/. units
rm -rf units/*.wants

mkdir -p proc sys dev run tmp var/{lib,cache,log,tmp} root home
chmod 1777 var/tmp
chmod 700 root
ln -s /run var/run
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=1777 tmp tmp
mount -t tmpfs -o mode=755,size=1m dev dev
mkdir dev/pts dev/shm
for device in null zero full random urandom tty; do
  mknod "dev/$device" c $((0x$(stat -c %t "/dev/$device"))) $((0x$(stat -c %T "/dev/$device")))
  chmod 666 "dev/$device" # mknod's own mode is cut by the umask
done
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for fd in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${fd%%:*}" "dev/${fd##*:}"; done
touch dev/console
mount --bind "$work/console" dev/console
cp -a "$work/etc" etc

mkdir old
pivot_root . old
umount -l /old
rmdir /old
# systemd empties /tmp when it starts: never with the wrong root.
if [ ! -e /etc/machine-for-a-test ] || [ -e "$work" ] || [ "$$" != 1 ]; then
  echo "machine.sh: this is not the machine's own root" >&2
  exit 1
fi
# Nothing of the kernel is the machine's: no modules, no clock, no ports.
exec setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-mac_admin,-mac_override \
  env -i PATH=/usr/bin:/usr/sbin HOME=/root container=machine-for-a-test \
  SYSTEMD_UNIT_PATH=/etc/systemd/system:/units \
  /usr/lib/systemd/systemd --system --show-status=no --log-target=journal --log-level=info
