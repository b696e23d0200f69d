#!/bin/sh
# mmdebstrap's customize hook: makes the packages in $1 a test machine, and the disk, kernel and initrd parts in $OUT.
#
# Runs on the host as root. In the environment: SITE, the Python packages of the tests; FILES, the tree to lay over the
# root; BARE, an empty directory to mount on; OUT.
set -eu

disk_size=3G # sparse: about 350 MB are written

# What the initrd loads before the root disk can be mounted; virtio_console carries the command's output.
boot_modules="virtio_pci virtio_blk virtio_console ext4 crc32c_generic"

# Of 330 MB of modules a machine without devices needs the file systems, the network protocols and these.
keep_drivers="block char net virtio"
keep_network_drivers="veth tun dummy macvlan ipvlan bridge tap bonding vxlan net_failover"

# No console to log in on, nothing to keep after the run, and no time to spend on either.
masked_units="
    getty.target console-getty.service getty-static.service getty@tty1.service serial-getty@ttyS0.service
    systemd-random-seed.service systemd-update-utmp.service systemd-update-utmp-runlevel.service
    systemd-journal-flush.service systemd-journal-catalog-update.service systemd-machine-id-commit.service
    systemd-firstboot.service systemd-sysusers.service systemd-update-done.service systemd-pstore.service
    systemd-ask-password-wall.path systemd-ask-password-console.path systemd-boot-system-token.service
    systemd-binfmt.service proc-sys-fs-binfmt_misc.automount systemd-modules-load.service ldconfig.service
    dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount
    modprobe@configfs.service modprobe@dm_mod.service modprobe@drm.service modprobe@efi_pstore.service
    modprobe@fuse.service modprobe@loop.service kmod-static-nodes.service e2scrub_reap.service e2scrub_all.timer
    fstrim.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer systemd-tmpfiles-clean.timer
"

root=$1
package=$(chroot "$root" apt-cache show --no-all-versions linux-image-amd64 |
    sed -n 's/^Depends: *\(linux-image-[^ ,]*\).*/\1/p')
# Extracted, not installed: its dependencies would bring and run an initrd generator. And not to /, where its lib/
# would replace the link to usr/lib.
chroot "$root" sh -euc 'cd /tmp
    apt-get -qq -o APT::Sandbox::User=root download "$1"
    dpkg-deb -x "$1"_*.deb kernel' sh "$package"
mkdir -p "$root/usr/lib/modules"
mv "$root"/tmp/kernel/lib/modules/* "$root/usr/lib/modules/"
mv "$root"/tmp/kernel/boot/vmlinuz-* "$OUT/kernel"
rm -r "$root"/tmp/*
kernel=$(basename "$root"/lib/modules/*)
modules=$root/lib/modules/$kernel/kernel
for driver in "$modules"/drivers/*; do
    case " $keep_drivers " in *" ${driver##*/} "*) ;; *) rm -rf "$driver" ;; esac
done
for driver in "$modules"/drivers/net/*; do
    name=${driver##*/}; name=${name%.ko}
    case " $keep_network_drivers " in *" $name "*) ;; *) rm -rf "$driver" ;; esac
done
rm -rf "$modules/sound" "$modules/arch/x86/kvm"
chroot "$root" depmod "$kernel"

chroot "$root" useradd --create-home --uid 1000 --shell /bin/bash agent
chroot "$root" python3 -m venv --without-pip /opt/venv
cp -R "$SITE/." "$root"/opt/venv/lib/python3*/site-packages/
rm -rf "$root"/opt/venv/lib/python3*/site-packages/bin
for script in "$SITE"/bin/*; do
    sed '1s|.*|#!/opt/venv/bin/python3|' "$script" > "$root/opt/venv/bin/${script##*/}"
    chmod 755 "$root/opt/venv/bin/${script##*/}"
done
chroot "$root" python3 -m compileall -q /opt/venv/lib || true  # test data of some packages is broken on purpose

cp -R "$FILES/." "$root/"
mkdir -p "$root/var/lib/systemd/linger"
touch "$root/var/lib/systemd/linger/agent"
rm -f "$root/etc/resolv.conf"
rm -f "$root"/usr/lib/systemd/system-generators/*  # each costs a process at boot and finds nothing here
for unit in $masked_units; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done

# What the initrd needs goes out to the host.
cp "$root/bin/busybox" "$OUT/busybox"
: > "$OUT/order"
for module in $boot_modules; do
    chroot "$root" modprobe -S "$kernel" --show-depends --all "$module" | while read -r verb file rest; do
        [ "$verb" = insmod ] || continue
        name=${file##*/}
        grep -qx "$name" "$OUT/order" && continue
        echo "$name" >> "$OUT/order"
        cp "$root$file" "$OUT/$name"
    done
done

rm -rf "$root"/boot/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/usr/share/doc/* \
    "$root"/usr/share/man/* "$root"/usr/share/locale/*
# The mirror and the proxy are the host's business.
rm -rf "$root"/etc/apt/sources.list* "$root"/etc/apt/apt.conf.d/99mmdebstrap
echo 5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f > "$root/etc/machine-id"
echo belljar-vm > "$root/etc/hostname"
# A bind mount that does not recurse shows the tree without the proc, sys and dev that mmdebstrap mounted in it.
unshare --mount sh -euc '
    mount --bind "$1" "$BARE"
    mke2fs -q -F -t ext4 -O ^has_journal -E root_owner=0:0,lazy_itable_init=1 -m 0 -d "$BARE" "$OUT/disk" "$2"
' sh "$root" "$disk_size"
