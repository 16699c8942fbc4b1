# shellcheck shell=bash
#
# Functions that make minimal root directories of this machine's distribution; sourced.

die() {
	echo "${0##*/}: $*" >&2
	exit 1
}

step() {
	echo
	echo "-- $* ($((SECONDS / 60))m$((SECONDS % 60))s)"
}

# sources: the apt sources of this machine that belong to its own distribution.
sources() {
	apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk -v suite="$VERSION_CODENAME" '$2 == suite || index($2, suite "-") == 1 && $2 !~ /backports|proposed/ { print "deb", $0 }'
}

# new_root NAME PACKAGE[,PACKAGE]...: makes a root with these packages, and sets $root to
# its directory, which is removed when the script ends. The cache keeps an archive of the
# root for a month.
new_root() {
	local archive list
	((EUID == 0)) || die "needs root"
	# shellcheck disable=SC1091
	. /etc/os-release
	[[ ${VERSION_CODENAME-} ]] && type -P mmdebstrap >/dev/null || die "needs Debian or Ubuntu, and mmdebstrap: tools/deps fresh"
	step "a root of $ID $VERSION_CODENAME with $2"
	archive=${XDG_CACHE_HOME:-$HOME/.cache}/tcpilot/$1/$ID-$VERSION_CODENAME.tar.zst
	if [[ ! $(find "$archive" -mtime -30 2>/dev/null) ]]; then
		list=$(sources)
		[[ $list ]] || die "no apt source of this machine is of $VERSION_CODENAME"
		mkdir -p "${archive%/*}"
		mmdebstrap --quiet --variant=minbase --include="$2" --format=tar "$VERSION_CODENAME" - <<<"$list" | zstd -q >"$archive.new"
		mv "$archive.new" "$archive"
	fi
	root=$(mktemp -d "/var/tmp/tcpilot-$1.XXXXXX")
	trap 'rm -rf --one-file-system "$root"' EXIT
	zstd -dc "$archive" | tar -x --numeric-owner -C "$root"
}
