"""Installs torch, and what the examples of the Python package need, into a folder for machines without a GPU.

Usage: python3 .ci/torch.py FOLDER
Needs: pip, gcc, readelf. The CUDA libraries that torch links are left out. In place of each stands one whose functions
answer that there is no device.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

PACKAGES = ["torch==2.15.0", "torchvision==0.29.2", "pillow", "transformers==5.24.0", "tokenizers==0.23.3",
            "huggingface_hub==2.4.0", "regex", "pyyaml", "tqdm", "typer", "click", "rich", "httpx2", "httpcore2", "anyio", "idna",
            "h11", "truststore", "annotated-doc", "shellingham", "markdown-it-py", "mdurl",
            "numpy", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec",
            "typing_extensions", "safetensors", "pytest", "pluggy", "iniconfig", "packaging", "pygments", "setuptools"]
CUDA = re.compile(r"lib(cu|nv|nccl)")
# Functions that the wheel asks of no library by name.
LOOSE = re.compile(r"(cu[a-z]*[A-Z]|nccl|nvrtc|nvshmem|nvJitLink|cupti)")
# cudaErrorNoDevice.
ABSENT = 100
# Functions that have another answer: no stream is being captured, and text.
ANSWERS = {
    "cudaStreamIsCapturing": "int cudaStreamIsCapturing(void *stream, int *status) { return *status = 0; }",
    "cudaGetErrorString": 'const char *cudaGetErrorString(int error) { return "there is no CUDA device"; }',
    "cudaGetErrorName": 'const char *cudaGetErrorName(int error) { return "cudaErrorNoDevice"; }',
}


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def wanted(libraries, present):
    """Functions by library and version that libraries need, and those that need no certain library."""
    found, loose = {}, set()
    for library in libraries:
        for name in re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-dW", library)):
            if CUDA.match(name) and name not in present:
                found.setdefault(name, {})
        owner, file = {}, None
        for line in run("readelf", "-VW", library).splitlines():
            if match := re.search(r"File: (\S+)", line):
                file = match[1]
            if (match := re.search(r"Name: (\S+)\s+Flags", line)) and file:
                owner[match[1]] = file
        for line in run("readelf", "-sW", "--dyn-syms", library).splitlines():
            fields = line.split()
            if len(fields) < 8 or fields[6] != "UND":
                continue
            name, _, version = fields[7].partition("@")
            version = version.lstrip("@")
            if owner.get(version) in found:
                found[owner[version]].setdefault(version, set()).add(name)
            elif not version and LOOSE.match(name):
                loose.add(name)
    return found, loose


def stub(folder, name, versions, more):
    """Builds a library of functions that answer `ABSENT`."""
    functions = sorted(set().union(more, *versions.values()))
    with tempfile.TemporaryDirectory() as work:
        source, script = pathlib.Path(work, "stub.c"), pathlib.Path(work, "stub.map")
        bodies = (ANSWERS.get(f, f"int {f}(void) {{ return {ABSENT}; }}") for f in functions if f.isidentifier())
        source.write_text("\n".join([*bodies, "int none;\n"]))
        script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(fs))}; }};\n" for v, fs in versions.items()))
        more = [f"-Wl,--version-script={script}"] if versions else []
        run("gcc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(source), *more)


def main():
    target = pathlib.Path(sys.argv[1])
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                    "--target", str(target), *PACKAGES], check=True)
    folder = target / "torch" / "lib"
    libraries = [path for path in folder.glob("*.so*") if not CUDA.match(path.name)]
    found, loose = wanted(map(str, libraries), {path.name for path in libraries})
    for name, versions in found.items():
        stub(folder, name, versions, loose if name.startswith("libcudart") else set())
    subprocess.run([sys.executable, "-c", "import torch"], check=True, env={"PYTHONPATH": str(target)})
    (target / "ready").touch()


if __name__ == "__main__":
    main()
