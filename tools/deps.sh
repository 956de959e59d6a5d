#!/bin/sh
# Installs missing Debian packages of tools/deps.txt, and packages named as arguments. Prints nothing if none
# is missing. On other systems the script only prints which packages are needed, and CMake names the missing
# ones.
set -eu
cd "$(dirname "$0")/.."

wanted="$(sed 's/#.*//' tools/deps.txt) $*"

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "deps: not a Debian system; dsv needs the contents of these Debian packages:" $wanted >&2
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
