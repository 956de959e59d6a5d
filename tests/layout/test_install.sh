#!/bin/sh
# test_install.sh BUILD CC [FLAGS]: the installed tree is whole, stays so when moved, and a program that knows
# of it only what pkg-config says compiles, links and runs.
set -eu
build=$1
cc=$2
flags=${3:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$build" --prefix "$folder/first" >/dev/null
mv "$folder/first" "$folder/moved"
cd "$folder/moved"

for path in bin/dsv include/dsv/dsv.h include/dsv/options.def lib/libdsv.so lib/pkgconfig/dsv.pc; do
    [ -e "$path" ] || { echo "make install laid no $path; there are:"; find . ! -type d; exit 1; }
done

cat >"$folder/consumer.c" <<'EOF'
#include <dsv/dsv.h>
#include <stdio.h>

int main(void)
{
    DsvConfig config;
    dsv_config_defaults(&config);
    if (dsv_config_set(&config, "num_frame=5") != DSV_E_USAGE)
        return 1;
    printf("%s %s\n", dsv_version(), dsv_error_message());
    return 0;
}
EOF
export PKG_CONFIG_PATH="$folder/moved/lib/pkgconfig"
# Flags are words to be split.
$cc $flags "$folder/consumer.c" $(pkg-config --cflags --libs dsv) -o "$folder/consumer"
said=$(LD_LIBRARY_PATH="$folder/moved/lib" "$folder/consumer")
case $said in
"$(pkg-config --modversion dsv) "*num_frames*) ;;
*) echo "the consumer said: $said"; exit 1 ;;
esac

said=$(bin/dsv --version)
case $said in
*"$(pkg-config --modversion dsv)"*) ;;
*) echo "bin/dsv --version said: $said"; exit 1 ;;
esac
echo "the installed tree serves"
