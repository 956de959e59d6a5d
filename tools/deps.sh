#!/bin/sh
# Installs the Debian packages of tools/deps.txt that are missing, and those named as arguments. Says and
# does nothing when all are there. Where packages are not Debian's it only tells what is wanted: CMake will
# name whatever it cannot find.
set -eu
cd "$(dirname "$0")/.."

wanted="$(sed 's/#.*//' tools/deps.txt) $*"

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "deps: not a Debian system; dsv needs what these Debian packages hold:" $wanted >&2
    exit 0
fi

missing=
for package in $wanted; do
    case "$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)" in
    ii*) ;;
    *) missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=env
elif command -v sudo >/dev/null; then
    as_root="sudo env"
else
    echo "deps: neither root nor sudo here; as root, run: apt-get install$missing" >&2
    exit 1
fi

echo "deps: installing$missing"
$as_root apt-get update -qq
$as_root DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
