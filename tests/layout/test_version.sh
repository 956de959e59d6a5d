#!/bin/sh
# test_version.sh DSV SOURCE: the program, the changelog and the citation name the same version.
set -eu
version=$("$1" version | sed 's/^dsv //')
changelog=$(sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' "$2/CHANGELOG.md" | head -n 1)
citation=$(sed -n 's/^version: //p' "$2/CITATION.cff")
if [ "$version" != "$changelog" ] || [ "$version" != "$citation" ]; then
    echo "dsv is $version, CHANGELOG.md begins with $changelog, CITATION.cff says $citation"
    exit 1
fi
echo "all say $version"
