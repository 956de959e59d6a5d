#!/bin/sh
# test_options.sh DSV PAGE: the committed page of settings is what the option table says now.
"$1" help options --markdown | diff -u "$2" - || {
    echo "docs/configuration.md is not what options.def says: run make docs"
    exit 1
}
