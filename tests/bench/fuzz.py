"""Fuzzes every reader of files that others wrote, and prints a table: inputs, new coverage, crashes, hangs, peak memory.

Usage: python tests/bench/fuzz.py [--hours 1] [--targets onnx,plan] [--out target/fuzz-out] [--loop]
Needs: cargo, a C++ compiler, and libfuzzer-sys from crates.io; no nightly toolchain, since libFuzzer's coverage needs stable flags alone.
Where it cannot be built, or with --loop, a plain loop of mutants stands in, without coverage: it needs the workspace's crates alone.

The targets run in turn, each with an equal share of the time and on the corpus of tests/fuzz/corpus. OUT/corpus keeps what was found,
for the next call; OUT/artifacts has the inputs that crashed, hung for 10 s or took more than 2 GiB; OUT/NAME.log what a target said;
OUT/fuzz.json the figures. `target/fuzz/x86_64-unknown-linux-gnu/release/NAME INPUT` runs an input again. The exit code is 1 where there
is an artifact.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "fuzz"
BUILD = ROOT / "target" / "fuzz"
HANG_S, MEMORY_MB, BLOCK_MB, LONGEST = 10, 2048, 1024, 1 << 16
# What `cargo fuzz build --sanitizer none` passes to rustc.
FLAGS = ["-Cpasses=sancov-module"] + [f"-Cllvm-args=-sanitizer-coverage-{f}" for f in
         ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")] + ["--cfg", "fuzzing"]


def host():
    text = subprocess.check_output(["rustc", "-vV"], text=True)
    return re.search(r"^host: (.*)$", text, re.M)[1]


def build_libfuzzer():
    """The folder of the fuzzers; None where they do not build. The lock file starts as the workspace's."""
    lock = HERE / "libfuzzer" / "Cargo.lock"
    if not lock.exists():
        shutil.copy(ROOT / "Cargo.lock", lock)
    command = ["cargo", "build", "--release", "--target", host(), "--target-dir", BUILD, "--manifest-path", HERE / "libfuzzer/Cargo.toml"]
    done = subprocess.run(list(map(str, command)), env=os.environ | {"RUSTFLAGS": " ".join(FLAGS)}, cwd=ROOT)
    return BUILD / host() / "release" if done.returncode == 0 else None


def build_loop():
    subprocess.run(["cargo", "build", "--release", "-p", "memc-fuzz", "--locked"], check=True, cwd=ROOT)
    return ROOT / "target" / "release" / "memc-fuzz"


def artifacts(folder):
    kinds = {"crash": 0, "timeout": 0, "oom": 0}
    for path in folder.iterdir():
        kind = path.name.split("-")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    return {"crashes": kinds["crash"], "hangs": kinds["timeout"], "over_memory": kinds["oom"]}


def libfuzzer(binary, name, seconds, out, env):
    """Runs a fuzzer again and again until its time is over: it ends at each artifact."""
    corpus, found = out / "corpus" / name, out / "artifacts" / name
    row = {"inputs": 0, "covered_at_first": None, "covered": 0, "new_inputs": 0, "peak_mb": 0}
    begun = time.monotonic()
    with (out / f"{name}.log").open("w") as log:
        while (left := seconds - (time.monotonic() - begun)) > 1:
            command = [binary, corpus, HERE / "corpus" / name, f"-max_total_time={int(left)}", f"-timeout={HANG_S}",
                       f"-rss_limit_mb={MEMORY_MB}", f"-malloc_limit_mb={BLOCK_MB}", f"-max_len={LONGEST}", "-print_final_stats=1",
                       f"-artifact_prefix={found}/", "-len_control=0"]
            done = subprocess.run(list(map(str, command)), stdout=log, stderr=subprocess.PIPE, text=True, errors="replace", env=env)
            log.write(done.stderr)
            number = lambda key: int((re.findall(rf"stat::{key}:\s+(\d+)", done.stderr) or [0])[-1])
            row["inputs"] += number("number_of_executed_units")
            row["new_inputs"] += number("new_units_added")
            row["peak_mb"] = max(row["peak_mb"], number("peak_rss_mb"))
            covered = [int(n) for n in re.findall(r"cov: (\d+)", done.stderr)]
            first = re.search(r"INITED cov: (\d+)", done.stderr)
            row["covered_at_first"] = row["covered_at_first"] or (int(first[1]) if first else None)
            row["covered"] = max([row["covered"], *covered])
            if done.returncode != 0 and number("number_of_executed_units") == 0:
                break
    return row | {"seconds": round(time.monotonic() - begun)}


def loop(binary, name, seconds, out, env):
    """Runs mutants in batches. A batch that does not come back leaves its input; the next one goes on behind it."""
    found, batch, first, peak, inputs = out / "artifacts" / name, 200, 0, 0, 0
    current = out / f"{name}.input"
    begun = time.monotonic()
    with (out / f"{name}.log").open("w") as log:
        while time.monotonic() - begun < seconds:
            command = [str(binary), name, str(batch), str(first)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env | {"MEMC_FUZZ_INPUT": str(current)})
            kind = "crash"
            while process.poll() is None:
                time.sleep(0.05)
                if current.exists() and time.time() - current.stat().st_mtime > HANG_S:
                    kind = "timeout"
                    process.kill()
            text = process.stdout.read()
            if process.returncode != 0:
                shutil.copy(current, found / f"{kind}-{first}")
            else:
                figures = json.loads(text)
                inputs, peak = inputs + figures["inputs"], max(peak, figures["peak_bytes"] >> 20)
            first += batch
    current.unlink(missing_ok=True)
    return {"inputs": inputs, "covered_at_first": None, "covered": None, "new_inputs": None, "peak_mb": peak,
            "seconds": round(time.monotonic() - begun)}


def table(rows):
    head = ["target", "minutes", "inputs", "per s", "edges at first", "edges", "crashes", "hangs", "over memory", "peak MB"]
    lines = [head, ["---"] * len(head)]
    for r in rows:
        rate = round(r["inputs"] / max(r["seconds"], 1))
        lines.append([r["target"], f"{r['seconds'] / 60:.1f}", f"{r['inputs']:,}", f"{rate:,}", r["covered_at_first"], r["covered"],
                      r["crashes"], r["hangs"], r["over_memory"], r["peak_mb"]])
    sums = {k: sum(r[k] for r in rows) for k in ("seconds", "inputs", "crashes", "hangs", "over_memory")}
    lines.append(["all", f"{sums['seconds'] / 60:.1f}", f"{sums['inputs']:,}", "", "", "", sums["crashes"], sums["hangs"],
                  sums["over_memory"], max(r["peak_mb"] for r in rows)])
    return "\n".join("| " + " | ".join("–" if c is None else str(c) for c in line) + " |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--targets", default="", help="names, separated by commas")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target" / "fuzz-out")
    parser.add_argument("--loop", action="store_true", help="a plain loop of mutants instead of libFuzzer")
    args = parser.parse_args()
    names = sorted(p.name for p in (HERE / "corpus").iterdir() if p.is_dir())
    wanted = [n for n in args.targets.split(",") if n] or names
    if unknown := set(wanted) - set(names):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    fuzzers = None if args.loop else build_libfuzzer()
    if fuzzers is None:
        print("no libFuzzer: a plain loop of mutants, without coverage", file=sys.stderr)
        program = build_loop()
    out, rows = args.out.resolve(), []
    for name in wanted:
        for part in ("corpus", "artifacts"):
            (out / part / name).mkdir(parents=True, exist_ok=True)
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            env = os.environ | {"TMPDIR": folder, "RAYON_NUM_THREADS": "2"}
            seconds = args.hours * 3600 / len(wanted)
            run = libfuzzer(fuzzers / name, name, seconds, out, env) if fuzzers else loop(program, name, seconds, out, env)
        rows.append({"target": name} | run | artifacts(out / "artifacts" / name))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        (out / "fuzz.json").write_text(json.dumps({"libfuzzer": fuzzers is not None, "rows": rows}, indent=1) + "\n")
    print(table(rows))
    return 1 if any(r["crashes"] + r["hangs"] + r["over_memory"] for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
