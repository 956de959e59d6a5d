#!/bin/bash
# bundle.sh BUILD FOLDER: puts the fuzz programs of a build tree (preset fuzz), their seeds, run.sh and the
# shared libraries that other machines may lack into FOLDER, for a machine with more cores. There, with a C
# library at least as new as this one's:
#
#     FOLDER/run.sh FOLDER SECONDS CORES
#
# Readers that need FFmpeg are left out, whose libraries are a hundred.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
programs="$1/tests/fuzz"
to="$2"
rm -rf "$to"
mkdir -p "$to/lib"
cp -r "$here/seeds" "$here/run.sh" "$to"
while read -r reader; do
    ! ldd "$programs/fuzz_$reader" | grep -q libavcodec || continue
    echo "$reader" >>"$to/readers.txt"
    strip --strip-debug -o "$to/fuzz_$reader" "$programs/fuzz_$reader"
    ldd "$programs/fuzz_$reader"
done <"$programs/readers.txt" | awk '$2 == "=>" { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux-x86-64)\.so' | xargs cp -L -t "$to/lib"
du -sh "$to"
