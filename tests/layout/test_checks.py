#!/usr/bin/env python3
"""test_checks.py TOOLS CC: makes each fault that the checks in TOOLS detect, and expects only it reported."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS, CC = (pathlib.Path(argument).absolute() for argument in sys.argv[1:3])


class Planted(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run_check(self, tool, *arguments):
        result = subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr

    def assert_passes(self, tool, *arguments):
        status, output = self.run_check(tool, *arguments)
        self.assertEqual(status, 0, output)

    def assert_complains(self, words, tool, *arguments):
        status, output = self.run_check(tool, *arguments)
        self.assertEqual(status, 1, output)
        self.assertNotIn("Traceback", output)
        complaints = [line for line in output.splitlines() if not line.startswith("note: ")]
        self.assertIn(words, output)
        return complaints


class Style(Planted):
    def complains(self, words, path, text):
        self.write(path, text)
        complaints = self.assert_complains(words, "check_style", self.root)
        self.assertEqual(len(complaints), 1, complaints)

    def test_good(self):
        self.write("src/base/rng.c", "/* Says why. */\nint dsvi_x;\n")
        self.write("include/dsv/status.h", "/* Public. */\n")
        self.write("src/base/status.h", "/* Its internal companion. */\n")
        self.assert_passes("check_style", self.root)

    def test_tab(self):
        self.complains("a tab", "a.c", "/* a */\n\tint a;\n")

    def test_trailing_blank(self):
        self.complains("a blank at the end", "a.c", "/* a */ \n")

    def test_final_newline(self):
        self.complains("does not end with one newline", "a.c", "/* a */")

    def test_opening_comment(self):
        self.complains("does not open with a comment", "a.c", "int a;\n")

    def test_unfinished(self):
        self.complains("unfinished", "a.md", "TO" "DO later\n")

    def test_foreign_path(self):
        self.complains("a path of one machine", "a.md", "see /" "work/main\n")

    def test_columns(self):
        self.complains("111 columns", "a.c", "/* a */\n" + "x" * 111 + "\n")

    def test_cuda_condition(self):
        self.complains("CUDA outside", "src/base/a.c", "/* a */\n#ifdef DSV_" "CUDA\n#endif\n")

    def test_launch(self):
        launch = "/* a */\n    kernel<" "<<1, 32>>>();\n"
        self.write("src/cuda/common/kernel.cuh", launch)
        self.write("lab/a.cu", launch)
        self.assert_passes("check_style", self.root)
        self.complains("a kernel launch outside src/cuda/common/kernel.cuh", "src/cuda/b.cu", launch)

    def test_same_name(self):
        self.write("src/ops/a.c", "/* a */\n")
        self.complains("has the name of", "src/cpu/a.c", "/* a */\n")

    def test_long_file(self):
        self.complains("901 lines", "a.c", "/* a */\n" + "int a;\n" * 900)

    def test_long_function(self):
        body = "    ;\n" * 140
        self.complains("a function of 142 lines", "a.c", "/* a */\nvoid f(void)\n{\n" + body + "}\n")

    def test_ignored(self):
        self.write(".gitignore", "/build/\n/build-*/\n")
        self.write("build/a.c", "\t")
        self.write("build-x/a.c", "\t")
        self.assert_passes("check_style", self.root)


class Format(Planted):
    """Each of a file that is laid out as the tree's .clang-format says, or of one that is not."""

    def setUp(self):
        super().setUp()
        self.write(".clang-format", (TOOLS.parent / ".clang-format").read_text())
        if self.run_check("check_format", self.root)[0] == 77:
            self.skipTest("clang-format 14 is not installed")

    def test_good(self):
        self.write("src/a.c", "int f(void)\n{\n    return 1;\n}\n")
        self.assert_passes("check_format", self.root)

    def test_c(self):
        self.write("src/a.c", "int f(void) { return 1; }\n")
        self.assert_complains("src/a.c:1", "check_format", self.root)

    def test_cuda(self):
        self.write("src/good.c", "int a;\n")
        self.write("src/a.cu", "int a;\nint  b;\n")
        self.assert_complains("src/a.cu:2", "check_format", self.root)

    def test_bad_rules(self):
        self.write(".clang-format", "Nonsense: 1\n")
        self.write("src/a.c", "int a;\n")
        self.assert_complains("unknown key", "check_format", self.root)

    def test_write(self):
        path = self.write("src/a.c", "int  a;\n")
        self.assert_passes("check_format", self.root, "--write")
        self.assertEqual(path.read_text(), "int a;\n")


class Headers(Planted):
    def test_good(self):
        self.write("include/dsv/a.h", "#ifndef A\n#define A\n#include <stdint.h>\nint32_t dsv_a;\n#endif\n")
        self.assert_passes("check_headers", self.root, CC)

    def test_not_alone(self):
        self.write("src/base/a.h", "#ifndef A\n#define A\nint32_t dsvi_a(void);\n#endif\n")
        self.assert_complains("base/a.h does not compile alone as c17", "check_headers", self.root, CC)

    def test_not_twice(self):
        self.write("src/base/a.h", "#ifndef A\n#define B\ntypedef struct DsvA { int a; } DsvA;\n#endif\n")
        self.assert_complains("base/a.h does not compile alone as c17", "check_headers", self.root, CC)

    def test_not_cpp(self):
        self.write("src/base/a.h", "#ifndef A\n#define A\nint dsvi_a(int class);\n#endif\n")
        self.assert_complains("base/a.h does not compile alone as c++17", "check_headers", self.root, CC)

    def test_none(self):
        self.assert_complains("no headers", "check_headers", self.root, CC)


class Layers(Planted):
    """A tree of two layers, low and high (which uses low), each of one file."""

    LOW = "int dsvi_low(void);\nint dsvi_low(void) { return 1; }\n"
    HIGH = "int dsvi_low(void);\nint dsv_high(void);\nint dsv_high(void) { return dsvi_low(); }\n"
    HEADER = "int dsv_high(void); /* not dsv_gone(void) */\n"
    PROGRAM = "int dsv_high(void);\nint main(void) { return dsv_high(); }\n"

    def compile(self, *arguments):
        subprocess.run([CC, "-fPIC", "-w", *arguments], check=True)

    def build(self, low=LOW, high=HIGH, header=HEADER, program=PROGRAM, exports="global: dsv_*; local: *;",
              low_file="low.c", libraries=()):
        low = self.write(f"src/low/{low_file}", low)
        high = self.write("src/high/high.c", high)
        program = self.write("program.c", program)
        self.write("include/dsv/high.h", header)
        script = self.write("export.map", "{ %s };" % exports)
        shared = self.root / "libdsv.so"
        lines = [f"source {self.root}", f"compiler {CC}"]
        for name, source, uses in (("low", low, []), ("high", high, ["uses low"])):
            member = source.parent / (source.name + ".o")
            self.compile("-I", self.root / "src", "-c", source, "-o", member)
            archive = self.root / f"lib{name}.a"
            subprocess.run(["ar", "rc", archive, member], check=True)
            lines += [f"layer {name}", f"archive {archive}", *uses]
            lines += [f"library {library}" for library in libraries]
        self.compile("-shared", f"-Wl,--version-script={script}", *self.root.glob("src/*/*.o"), "-o", shared)
        self.compile(program, shared, "-Wl,--allow-shlib-undefined", "-o", self.root / "program")
        lines += [f"shared {shared}", f"program {self.root / 'program'}"]
        return self.write("layers.txt", "\n".join(lines) + "\n")

    def complains(self, words, **tree):
        complaints = self.assert_complains(words, "check_layers", self.build(**tree))
        self.assertEqual(len(complaints), 1, complaints)

    def test_good(self):
        self.assert_passes("check_layers", self.build())

    def document(self, picture, uses):
        self.write("docs/architecture.md", f"""```
cli      the program
{picture}
```

| `src/high` | {uses} | more |
| `src/low` | | less |
""")

    def test_documented(self):
        self.document("high     more\nlow      less", "low")
        self.assert_passes("check_layers", self.build())

    def test_wrong_table(self):
        self.document("high     more\nlow      less", "")
        self.complains("the table has high use [], and the build ['low']")

    def test_wrong_picture(self):
        self.document("low, high     all", "low")
        self.complains("in the picture high does not stand above low")

    def test_upward_call(self):
        self.complains("low/low.c: uses dsv_high of layer high; low may use low",
                       low=self.LOW + "int dsv_high(void);\nint dsvi_up(void) { return dsv_high(); }\n")

    def test_upward_include(self):
        self.write("src/high/high.h", "enum { HIGH };\n")
        self.complains("src/low/low.c: includes high/high.h", low='#include "high/high.h"\n' + self.LOW)

    def test_upward_include_in_angles(self):
        self.write("src/high/high.h", "enum { HIGH };\n")
        self.complains("src/low/low.c: includes high/high.h", low="#include <high/high.h>\n" + self.LOW)

    def test_program_includes_internals(self):
        self.write("cli/main.c", '#include "low/low.h"\n#include "verb.h"\n#include "dsv/high.h"\n')
        self.complains("cli/main.c: includes low/low.h")

    def test_public_header_includes_internals(self):
        self.write("include/low/low.h", "\n")
        self.complains("public headers know no internals", header='#include "low/low.h"\n' + self.HEADER)

    def test_undeclared_library(self):
        library = self.root / "libother.so"
        self.compile("-shared", self.write("other.c", "int other(void) { return 1; }\n"), "-o", library)
        low = self.LOW + "int other(void);\nint dsvi_other(void) { return other(); }\n"
        self.complains("uses other of a library the layer does not declare", low=low)
        self.assert_passes("check_layers", self.build(low=low, libraries=[library]))

    def test_name(self):
        self.complains("defines helper; linkable names begin",
                       low=self.LOW + "int helper(void) { return 1; }\n")

    def test_undeclared_public_name(self):
        self.complains("defines dsv_gone, which include/dsv does not declare",
                       low=self.LOW + "int dsv_gone(void) { return 1; }\n",
                       exports="global: dsv_high; local: *;")

    def test_printing(self):
        self.complains("low/low.c: calls puts",
                       low=self.LOW + "int puts(const char *);\nvoid dsvi_p(void) { puts(\"x\"); }\n")

    def test_exit(self):
        self.complains("low/low.c: calls exit",
                       low=self.LOW + "void exit(int);\nvoid dsvi_p(void) { exit(1); }\n")

    def test_environment(self):
        self.complains("low/low.c: calls getenv",
                       low=self.LOW + "char *getenv(char *);\nchar *dsvi_p(void) { return getenv(\"x\"); }\n")

    def test_abort_only_in_base(self):
        self.complains("low/status.c: calls abort", low_file="status.c",
                       low=self.LOW + "void abort(void);\nvoid dsvi_p(void) { abort(); }\n")

    def test_exports_internals(self):
        self.complains("libdsv.so: exports dsvi_low", exports="global: *;")

    def test_lacks_public(self):
        self.complains("libdsv.so: lacks dsv_more", header=self.HEADER + "int dsv_more(int a);\n")

    def test_program_with_internals(self):
        self.complains("dsv: holds dsvi_low",
                       program="int dsvi_low(void) { return 0; }\n" + self.PROGRAM)


unittest.main(argv=sys.argv[:1])
