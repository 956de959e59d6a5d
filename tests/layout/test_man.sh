#!/bin/sh
# test_man.sh DSV: the manual page has every verb, flag and option, and groff renders it without a warning.
set -eu
dsv=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$dsv" help --man >"$folder/dsv.1"

groff=$(command -v groff) || { echo "groff is not installed (Debian: groff-base)"; exit 77; }
"$groff" -man -Tascii -P-c -ww -rLL=200n "$folder/dsv.1" 2>"$folder/said" | sed 's/.\x08//g' >"$folder/page"
[ ! -s "$folder/said" ] || { echo "groff warns:"; cat "$folder/said"; exit 1; }

missing()
{
    echo "the manual page lacks $1"
    exit 1
}
"$dsv" help | sed -n 's/^  \([a-z]*\( [a-z]*\)\?\)  .*/\1/p' >"$folder/verbs"
[ "$(wc -l <"$folder/verbs")" -gt 10 ] || missing "the verbs of dsv help, which were not understood"
while read -r verb; do
    grep -q "^   dsv $verb\$" "$folder/page" || missing "the verb $verb"
    "$dsv" help "$verb" | sed -n 's/^  \(-[-a-z]*\) .*/\1/p' | while read -r flag; do
        case $flag in -v | -h) ;; *) grep -q -e "^ *$flag\b" "$folder/page" || missing "$verb $flag" ;; esac
    done
done <"$folder/verbs"
"$dsv" help options --markdown | sed -n 's/^| `\([^`]*\)` .*/\1/p' >"$folder/keys"
[ "$(wc -l <"$folder/keys")" -gt 50 ] || missing "the settings, which were not understood"
while read -r key; do
    grep -q "^       $key=" "$folder/page" || missing "the setting $key"
done <"$folder/keys"
echo "$(wc -l <"$folder/verbs") verbs and $(wc -l <"$folder/keys") settings"
