#!/bin/sh
# test_options.sh DSV PAGE: the committed page of options equals the one that dsv generates.
"$1" help options --markdown | diff -u "$2" - || {
    echo "docs/configuration.md is not what options.def says: run make docs"
    exit 1
}
