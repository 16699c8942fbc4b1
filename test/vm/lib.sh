# shellcheck shell=bash disable=SC2034
#
# Sourced by run, fetch, gotest and install: the list of kernels, the place of the cache,
# and functions for errors.
set -euo pipefail

# The distribution and suite that has each kernel; "7" stands for the newest 7.x.
KERNELS=(6.1 6.8 6.11 6.12 6.18 7)
declare -A SUITE=(
	[6.1]=Debian/bookworm [6.12]=Debian/bookworm-backports [6.18]=Debian/trixie-backports [7]=Debian/sid
	[6.8]=Ubuntu/noble-updates [6.11]=Ubuntu/noble-updates
)

# The number is the version of the layout that fetch writes and run reads: raise it when
# the layout changes, so that run never reads an older one.
CACHE=$(realpath -m "${TCPILOT_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tcpilot/vm}/1")

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# 125 is a failure of the script itself, not of the command that it runs.
die() {
	say "$@"
	exit 125
}

# The packages that fetch, run and gotest need, by the command that each provides.
# Messages name packages, not the script install, because an installed tcpilot-lab has
# these scripts embedded, without a checkout.
declare -A PACKAGE=(
	[qemu-system-x86_64]=qemu-system-x86 # the emulator
	[busybox]=busybox-static             # user space of the initramfs
	[cpio]=cpio                          # packs the initramfs
	[depmod]=kmod                        # here, modprobe in the guest
	[xz]=xz-utils [zstd]=zstd            # kernel images and modules are compressed with either
	[setpriv]=util-linux                 # ends the machine with the script
)
# The keyring that Debian's packages are checked with; the variable is for distributions
# that have it elsewhere.
KEYRING=${TCPILOT_VM_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
KEYRING_PACKAGE=debian-archive-keyring

# need COMMAND...: die unless all are installed.
need() {
	local command missing=()
	for command; do
		type -P "$command" >/dev/null || missing+=("${PACKAGE[$command]-$command}")
	done
	((${#missing[@]} == 0)) ||
		die "packages are missing here: on Debian and Ubuntu, apt-get install ${missing[*]}"
}

# known KERNEL: die unless it is in KERNELS.
known() {
	[[ -v SUITE[$1] ]] || die "kernel $1: not one of ${KERNELS[*]}"
}
