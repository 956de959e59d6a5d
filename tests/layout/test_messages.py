#!/usr/bin/env python3
"""test_messages.py ROOT: every message that docs/troubleshooting.md quotes in the first column of a table is
a text of the program. `...` in a quoted message stands for what the program fills in. A quote without a
blank is an option, a path or a program's name, and is not looked up."""
import pathlib
import re
import sys

SOURCES = ("cli", "src", "tools", "CMakeLists.txt")
SUFFIXES = {".c", ".cu", ".h", ".cuh", ".sh", ".txt"}
FROM_THE_SYSTEM = {"Connection refused", "Address already in use", "cannot open shared object file"}


def texts_of(root):
    """The sources' text with string literals joined, as the compiler joins them."""
    paths = []
    for name in SOURCES:
        path = root / name
        paths += [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in SUFFIXES]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    text = re.sub(r'"\s*PRI[diux]64\s*(?:")?', '%d"' + '"', text)
    return re.sub(r'"\s*\n?\s*"', "", text)


def quoted_messages(page):
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        if line.startswith("| "):
            for message in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
                if " " in message:
                    yield number, message


def pieces_of(message):
    """The parts of a message that the program does not fill in, long enough to be told from chance."""
    for known in FROM_THE_SYSTEM:
        message = message.replace(known, "...")
    message = re.sub(r"^(warning: )", "", message)
    return [piece for piece in (p.strip(" :,") for p in message.split("...")) if len(piece) > 3]


def main():
    root = pathlib.Path(sys.argv[1])
    texts, missing, count = texts_of(root), [], 0
    for number, message in quoted_messages(root / "docs/troubleshooting.md"):
        count += 1
        for piece in pieces_of(message):
            if piece not in texts:
                missing.append(f"docs/troubleshooting.md:{number}: no text of the program has: {piece}")
    for line in missing:
        print(line)
    if missing or count < 20:
        sys.exit(f"{count} messages looked up, {len(missing)} parts not found")
    print(f"{count} messages are the program's")


main()
