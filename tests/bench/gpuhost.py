"""The machine of gpu.py: what a person asks of it when a run goes wrong, its memory, and what its GPU does meanwhile."""
import ctypes
import glob
import json
import os
import pathlib
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time

# Seconds between two readings of the GPU; and how busy, in percent, it is at least while its clock counts.
EVERY, BUSY = 0.2, 50
# Bits of NVML's reasons for a lower clock, without those of an idle GPU and of clocks that an application set.
REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal, software", 0x40: "thermal, hardware", 0x80: "power brake"}
SM_CLOCK = 1


class Words(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Meter:
    """Reads SM clock, memory in use and power of a GPU all the time, by NVML. It says nothing where there is no NVML."""

    def __init__(self, index):
        self.seen = []
        try:
            self.nvml = next(filter(None, map(opened, ["libnvidia-ml.so.1", *nvml_files()])))
            self.at = ctypes.c_void_p()
            if self.nvml.nvmlInit_v2() == 0 and self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.at)) == 0:
                threading.Thread(target=self.watch, daemon=True).start()
        except (AttributeError, StopIteration):
            self.nvml = None

    def watch(self):
        while True:
            self.seen.append((time.monotonic(), self.now()))
            time.sleep(EVERY)

    def now(self):
        """One reading; what this NVML does not tell is None."""
        word, memory, rates, reasons = ctypes.c_uint(), Words(), Rates(), ctypes.c_ulonglong()
        asks = {"sm_mhz": ("nvmlDeviceGetClockInfo", (SM_CLOCK, ctypes.byref(word)), lambda: word.value),
                "used": ("nvmlDeviceGetMemoryInfo", (ctypes.byref(memory),), lambda: memory.used),
                "busy": ("nvmlDeviceGetUtilizationRates", (ctypes.byref(rates),), lambda: rates.gpu),
                "watts": ("nvmlDeviceGetPowerUsage", (ctypes.byref(word),), lambda: word.value / 1000),
                "reasons": ("nvmlDeviceGetCurrentClocksThrottleReasons", (ctypes.byref(reasons),), lambda: reasons.value)}
        found = {}
        for name, (function, more, value) in asks.items():
            ask = getattr(self.nvml, function, None)
            found[name] = value() if ask and ask(self.at, *more) == 0 else None
        return found

    def since(self, start):
        """What a row says of the GPU since then: clock and power while it was busy, and the most memory in use."""
        seen = [one for at, one in list(self.seen) if at >= start]
        busy = [one for one in seen if (one["busy"] or 0) >= BUSY] or seen
        told = lambda name, of: [one[name] for one in of if one[name] is not None]
        row = {name: round(statistics.median(values)) for name in ("sm_mhz", "watts") if (values := told(name, busy))}
        if lowest := told("sm_mhz", busy):
            row["sm_mhz_least"] = min(lowest)
        if used := told("used", seen):
            row["used_bytes"] = max(used)
        held = {text for bits in told("reasons", busy) for bit, text in REASONS.items() if bits & bit}
        return row | ({"clock_held_by": sorted(held)} if held else {})


def opened(name):
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def nvml_files():
    folders = [*os.environ.get("MEMRUN_CUDA_LIBS", "").split(os.pathsep), "/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu"]
    return [f"{folder}/libnvidia-ml.so.1" for folder in folders if folder]


def total_memory():
    """Bytes of the machine's memory, as the system says; of a machine whose memory grows as it is used, less than it can be."""
    lines = dict(line.split(":", 1) for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemTotal"].split()[0]) * 1024


def search_libraries():
    """Lets memrun look for CUDA's libraries among the wheels of this Python, and in the usual toolkit."""
    folders = [found for folder in sys.path for found in sorted(glob.glob(f"{folder}/nvidia/*/lib"))]
    folders += glob.glob("/usr/local/cuda/lib64")
    said = os.environ.get("MEMRUN_CUDA_LIBS")
    if folders:
        os.environ["MEMRUN_CUDA_LIBS"] = os.pathsep.join(dict.fromkeys([*([said] if said else []), *folders]))


def sanitizer():
    """compute-sanitizer: on the path, of a toolkit, or of NVIDIA's wheel."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [f"{home}/bin/compute-sanitizer" for home in filter(None, homes)] + ["/usr/local/cuda/bin/compute-sanitizer"]
    for folder in sys.path:
        # The wheel's command is a script that calls the program in this folder.
        places += glob.glob(f"{folder}/nvidia/*/compute-sanitizer/compute-sanitizer")
    return shutil.which("compute-sanitizer") or next((p for p in places if os.access(p, os.X_OK)), None)


def environment(folder):
    """The machine in words, by headings. Each part is told or says why not."""
    def file(name, lines):
        return "\n".join(pathlib.Path(name).read_text().splitlines()[:lines])

    def command(*line, end=3000):
        ran = subprocess.run(line, capture_output=True, text=True, timeout=15)
        return (ran.stdout + ran.stderr).strip()[:end] + (f"\nexit {ran.returncode}" if ran.returncode else "")

    limits = ("AS", "MEMLOCK", "NOFILE", "NPROC", "STACK")
    shown = ("CUDA", "MEMRUN", "LD_LIBRARY", "VIRTUAL_ENV", "CONDA", "NVIDIA", "XDG_CACHE", "OMP_NUM")
    parts = {
        "system": lambda: "; ".join([platform.platform(), " ".join(platform.libc_ver()), f"{os.cpu_count()} CPUs",
                                    f"Python {platform.python_version()}"]),
        "memory": lambda: file("/proc/meminfo", 6),
        "memory of the group": lambda: file("/sys/fs/cgroup/memory.max", 1),
        "limits": lambda: json.dumps({of: resource.getrlimit(getattr(resource, f"RLIMIT_{of}"))[0] for of in limits}),
        "disk": lambda: json.dumps({str(at): shutil.disk_usage(at).free for at in (folder, pathlib.Path.home())}),
        "variables": lambda: json.dumps({k: v[:400] for k, v in os.environ.items() if k.startswith(shown)}),
        "driver": lambda: file("/proc/driver/nvidia/version", 2),
        "nvidia-smi": lambda: command("nvidia-smi"),
        "clocks": lambda: command("nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE"),
        "link": lambda: command("nvidia-smi", "--query-gpu=pcie.link.gen.current,pcie.link.width.current,clocks.max.sm", "--format=csv"),
        "compute-sanitizer": lambda: str(sanitizer()),
    }
    found = {}
    for name, tell in parts.items():
        try:
            found[name] = tell()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            found[name] = f"not told: {error}"
    return found
