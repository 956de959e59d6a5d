"""`python -m dsv train ...` is the program dsv: it replaces this process, so that signals, the terminal
and the exit status are those of the program."""

import os
import pathlib
import shutil
import sys


def program():
    """Returns the path of the program: the one that DSV_PROGRAM names, or the wheel's, or the one in PATH."""
    bundled = pathlib.Path(__file__).parent / "bin" / "dsv"
    return os.environ.get("DSV_PROGRAM") or (str(bundled) if bundled.exists() else shutil.which("dsv"))


def main():
    path = program()
    if not path:
        sys.exit(
            "the program dsv is not installed with this package, nor found in PATH: set DSV_PROGRAM"
        )
    try:
        os.execv(path, ["dsv", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{path} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
