# shellcheck shell=bash disable=SC2034
#
# Sourced by run, fetch and gotest: which kernels there are, where they are
# kept, and how to fail.
set -euo pipefail

# The Debian suite that carries each kernel; "7" stands for the newest 7.x.
KERNELS=(6.1 6.12 6.18 7)
declare -A SUITE=([6.1]=bookworm [6.12]=bookworm-backports [6.18]=trixie-backports [7]=sid)

# The number is that of the layout that fetch writes and run reads: raise it
# with the layout, and no run meets an older one.
CACHE=$(realpath -m "${TCPILOT_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tcpilot/vm}/1")

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# 125 is the runner's own failure, as against that of the command it runs.
die() {
	say "$@"
	exit 125
}

# need COMMAND...: die unless all are there.
need() {
	local command
	for command; do
		type -P "$command" >/dev/null || die "no $command here: run test/vm/install"
	done
}

# known KERNEL: die unless it is one of ours.
known() {
	[[ -v SUITE[$1] ]] || die "kernel $1: not one of ${KERNELS[*]}"
}
