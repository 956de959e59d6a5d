#!/bin/sh
# test_install.sh BUILD CC: the installed tree is complete and works after it is moved, and a program
# that uses only the flags of pkg-config compiles, links and runs.
set -eu
build=$1
cc=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$build" --prefix "$folder/first" >/dev/null
mv "$folder/first" "$folder/moved"
cd "$folder/moved"

for path in bin/dsv include/dsv/dsv.h include/dsv/options.def lib/libdsv.so lib/pkgconfig/dsv.pc \
    share/dsv/configs/demo.yaml share/dsv/configs/wan1.3b.yaml share/doc/dsv/LICENSE share/doc/dsv/README.md \
    share/doc/dsv/docs/configuration.md share/doc/dsv/results/images/demo.png share/man/man1/dsv.1; do
    [ -e "$path" ] || { echo "make install laid no $path; there are:"; find . ! -type d; exit 1; }
done
links=$(grep -o ']([^) ]*)' share/doc/dsv/README.md | sed 's/^](//; s/[)#].*//' | sort -u)
[ "$(echo "$links" | wc -l)" -gt 4 ] || { echo "README.md links to: $links"; exit 1; }
for link in $links; do
    case $link in http*) continue ;; esac
    [ -e "share/doc/dsv/$link" ] || { echo "README.md links to $link, which is not installed"; exit 1; }
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
$cc "$folder/consumer.c" $(pkg-config --cflags --libs dsv) -o "$folder/consumer"
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
# Without a file, and with one that is not here, it takes those installed with it, from any folder.
mkdir "$folder/elsewhere"
cd "$folder/elsewhere"
dsv=$folder/moved/bin/dsv
"$dsv" train --dry-run >said || { echo "no installed configuration found"; exit 1; }
grep -q '^model.preset=demo, changed by' said || { echo "not configs/demo.yaml:"; cat said; exit 1; }
"$dsv" train configs/dsv2.7b.yaml --dry-run device=cpu model.num_layers=1 >said 2>&1 || true
grep -q '^model: .* 1 blocks' said || { echo "configs/dsv2.7b.yaml was not found:"; cat said; exit 1; }
ffmpeg -v error -f lavfi -i testsrc=size=64x64:rate=12:duration=1 clip.mp4
"$dsv" train data.path=clip.mp4 output_dir=run max_train_steps=1 model.num_layers=1 threads=1 \
    validation_at_end=false >said 2>&1 || { echo "the installed program does not train:"; cat said; exit 1; }
[ -e run/checkpoint-1/manifest.json ] || { echo "no checkpoint; the program said:"; cat said; exit 1; }
mkdir configs
echo 'model.num_layers: 3' >configs/dsv2.7b.yaml
"$dsv" train configs/dsv2.7b.yaml --dry-run >said
grep -q '^model: .* 3 blocks' said || { echo "a file that is here does not come first:"; cat said; exit 1; }
! "$dsv" train configs/none.yaml --dry-run 2>said || { echo "no file, no failure"; exit 1; }
grep -q 'configs/none.yaml' said || { echo "no file is not named:"; cat said; exit 1; }
echo "the installed tree serves"
