"""make_environment.py FOLDER: makes a virtual environment for the tests of the Python package on a CPU.

PyPI's PyTorch for Linux is built for CUDA and asks for 2 GB of NVIDIA's libraries, which a machine without a
GPU loads and never calls. The environment has PyTorch without them: each missing library is replaced by an
empty one, compiled here, that has the names PyTorch looks up when it is loaded. A call of such a name aborts
the process. NVIDIA's runtime library, which PyTorch asks for the number of GPUs, is the real one. Needs gcc
and binutils. A folder that was made from the same list of packages by the same Python is kept."""

import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|ld-linux")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(library):
    """Names of the libraries that a library asks for."""
    return set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", library)))


def asked_versions(library):
    """(file, version) of each version that a library asks another library for."""
    file = None
    for found in re.finditer(r"File: (\S+)|Name: (\S+)  Flags", output("readelf", "-V", library)):
        file = found[1] or file
        if found[2]:
            yield file, found[2]


def undefined(library):
    """(name, version) of each symbol that a library takes from others; version is "" without versions."""
    for line in output("nm", "-D", "--undefined-only", library).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version


def replace_missing(folder):
    """Compiles into `folder`, which holds PyTorch's libraries, an empty one for each that is missing."""
    libraries = list(folder.glob("*.so*"))
    present = {path.name for path in [*libraries, *folder.parents[1].glob("nvidia/*/lib/*.so*")]}
    missing = set().union(*map(needed, libraries)) - present
    symbols = set().union(*map(undefined, libraries))
    versions = set().union(*map(asked_versions, libraries))
    script = folder / "replaced.map"
    for library in sorted(name for name in missing if not SYSTEM.match(name)):
        names, nodes = set(), ""
        for version in {version for file, version in versions if file == library}:
            here = {name for name, its in symbols if its == version}
            names |= here
            nodes += f"{version} {{ global: {''.join(name + '; ' for name in here)}}};\n"
        prefix = re.match(r"lib([a-z]+)", library.lower())[1]
        names |= {name for name, version in symbols if not version and name.lower().startswith(prefix)}
        script.write_text(nodes)
        functions = "".join(f"void {name}(void) {{ abort(); }}\n" for name in sorted(names))
        subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-", "-o", folder / library,
                        f"-Wl,-soname,{library}", *([f"-Wl,--version-script={script}"] if nodes else [])],
                       input="void abort(void);\n" + functions, text=True, check=True)
    script.unlink(missing_ok=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]).absolute()
    parts = [path.read_bytes() for path in sorted(HERE.glob("requirements*.txt")) + [pathlib.Path(__file__)]]
    made_from = hashlib.sha256(b"".join(parts) + sys.version.encode()).hexdigest()
    mark = folder / "made_from"
    if mark.exists() and mark.read_text() == made_from:
        return
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    install = [folder / "bin/pip", "-q", "--disable-pip-version-check", "install", "--no-compile"]
    subprocess.run([*install, "--no-deps", "-r", HERE / "requirements_torch.txt"], check=True)
    torch = next(folder.glob("lib/python*/site-packages/torch-*.dist-info/METADATA")).read_text()
    plain = re.findall(r"^Requires-Dist: ([^;\n]+)$", torch, re.MULTILINE)  # NVIDIA's have a condition
    subprocess.run([*install, *plain, "-r", HERE / "requirements.txt"], check=True)
    replace_missing(next(folder.glob("lib/python*/site-packages/torch/lib")))
    subprocess.run([folder / "bin/python", "-c", "import torch, diffusers"], check=True)
    mark.write_text(made_from)


if __name__ == "__main__":
    main()
