# Sourced by `build` and `test`, which set $here: the sources that come through cargo, pinned and
# with their checksums in source/Cargo.lock.

# Prints the path of a package's archive, verified, and fetched first where it is missing.
crate() {
    local package checksum archive
    read -r package checksum < <(awk -F '"' -v name="$1" '
        /^\[\[/ { ours = 0 }
        /^name = / && $2 == name { ours = 1 }
        ours && /^version/ { version = $2 }
        ours && /^checksum/ { print name "-" version, $2 }' "$here/source/Cargo.lock")
    find_archive() {
        find "${CARGO_HOME:-$HOME/.cargo}/registry/cache" -name "$package.crate" 2>/dev/null | head -n 1 || true
    }
    archive=$(find_archive)
    if [ -z "$archive" ]; then
        cargo fetch --locked --manifest-path "$here/source/Cargo.toml" >&2 || return 1
        archive=$(find_archive)
    fi
    [ -n "$archive" ] || { echo "cargo has fetched no $package" >&2; return 1; }
    echo "$checksum  $archive" | sha256sum --check --quiet - >&2 || return 1
    echo "$archive"
}

# unpack ARCHIVE STRIP PATH... unpacks these paths of a package into the working directory, without
# so many directories in front.
unpack() {
    local archive=$1 strip=$2 package
    package=$(basename "$archive" .crate)
    shift 2
    tar xzf "$archive" --strip-components="$strip" "${@/#/$package/}"
}

# Adds the private tag to OpenSSL in the working directory: with libaegis, of which it needs one
# variant, from the archive $1.
add_private_tag() {
    mkdir ssl/aegis
    (cd ssl/aegis && unpack "$1" 5 src/c/libaegis/src/{aegis128x2,common,include})
    patch --quiet --strip=1 --fuzz=0 < "$here/private-tag.patch"
}
