#!/bin/bash
# The first process of a host of a lab (hosts.py): gives the namespaces, in which it runs, what a host has of its own.
# NAME is the host, LAB the lab's directory; the paths in SHARED stay visible below the host's own /tmp and /run.
set -eu
hostname "$NAME"
ip link set lo up
number=0
mount -t tmpfs tmpfs /mnt
for path in $SHARED; do mkdir /mnt/$number; mount --bind "$path" /mnt/$number; number=$((number + 1)); done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
number=0
for path in $SHARED; do mkdir -p "$path"; mount --move /mnt/$number "$path"; number=$((number + 1)); done
umount /mnt
mkdir -p /run/sshd; mkdir -m 700 -p /run/user/0
mount --bind "$LAB/hosts" /etc/hosts
mount --bind "$LAB/$NAME/boot_id" /proc/sys/kernel/random/boot_id
if [ -d "$LAB/ssh" ] && [ -d /etc/ssh/ssh_config.d ]; then mount --bind "$LAB/ssh" /etc/ssh/ssh_config.d; fi
echo ready
exec >/dev/null 2>&1
trap : TERM INT HUP
while :; do sleep 3600 & wait; done # reaps the processes that outlive their parents
