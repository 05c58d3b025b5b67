"""A stage of `gpu.py run`: several jobs in one plan, jobs that come and go, and requests over HTTP, beside runs of each alone."""
import concurrent.futures
import http.client
import json
import os
import signal
import subprocess
import time

from gpudata import digest, tensors
from gpulab import parsed

OF = ["--dim=batch=8", "--loss=cross-entropy", "--optimizer=momentum:lr=0.01,momentum=0.9"]
JOBS = {"a": "resnet18", "b": "resnet50"}
# Steps of each job. With the controller the first one takes more, so that it still trains when the second one comes.
STEPS, LONGER = 20, 2000
# Digests of the states of each job alone, by job and steps.
OWN = {}
# Seconds that the controller, and a server, may take in all.
WAIT = 60


def compared(lab, paths, steps):
    """A row that says whether saved states are those of the jobs alone."""
    for job, net in JOBS.items():
        if (job, steps[job]) not in OWN:
            row, found = lab.states(f"{net}-8.100.plan", lab.device, steps=steps[job])
            if found is None:
                return row
            OWN[job, steps[job]] = digest(found)
    return {"alike": all(digest(tensors(paths[job])) == OWN[job, steps[job]] for job in JOBS)}


def joint(lab):
    """Two jobs in one plan, of four fifths of the arena that the larger one has by itself."""
    plan, saved = lab.folder / "joint.plan", lab.folder / "joint.{job}.safetensors"
    whole = lab.models("bits")["resnet50-8"][1][100]
    size = whole["gpu_mem_bytes"] - whole["arena_bytes"] // 5
    line = [word for job, net in JOBS.items() for word in ("--job", f"{job}={lab.folder / f'{net}.onnx'}", *OF)]
    out, wrong = lab.call(lab.folder / "memc", "compile", "--device", lab.prepared["profile"], "--effort", 0, "--json", "--gpu-mem",
                          f"{size}B", "-o", plan, *line)
    if wrong:
        return wrong
    row = lab.memrun(plan, lab.device, "--save", saved, steps=STEPS)
    paths = {job: lab.folder / f"joint.{job}.safetensors" for job in JOBS}
    return row if "error" in row else row | {"planned_ns": parsed(out)["step_ns"]} | compared(lab, paths, dict.fromkeys(JOBS, STEPS))


class Server:
    """A program that runs until the block ends."""

    def __init__(self, lab, *line):
        self.log = lab.folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(list(map(str, line)), stdout=log, stderr=log, cwd=lab.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def says(self):
        return self.log.read_text(errors="replace")[-1500:]


def controller(lab):
    """A second job comes while the first one trains."""
    socket, saved = lab.folder / "s", {job: lab.folder / f"served.{job}.safetensors" for job in JOBS}
    at, steps = "cuda:0" if lab.gpu else "cpu", {"a": LONGER if lab.gpu else STEPS, "b": STEPS}
    for path in saved.values():
        path.unlink(missing_ok=True)
    lab.call("rm", "-rf", lab.folder / "jobs")
    ask = lambda *words: lab.call(lab.folder / "memc", "job", *words, "--socket", socket, "--json")
    begin = time.monotonic()
    with Server(lab, lab.folder / "memc", "serve", "--device", lab.prepared["profile"], "--on", at, "--effort", 0, "--gpu-mem", "8G",
                "--socket", socket, "--folder", lab.folder / "jobs") as server:
        while ask("status")[1]:
            if time.monotonic() > begin + WAIT or server.process.poll() is not None:
                return {"error": f"the controller does not answer\n{server.says()}"}
            time.sleep(0.2)
        for job, net in JOBS.items():
            _, wrong = ask("submit", "--job", f"{job}={lab.folder / f'{net}.onnx'}", *OF, "--synthetic", "--steps", steps[job], "--save",
                           saved[job])
            if wrong:
                return wrong
            while job == "a" and done_steps(ask) == 0:
                if time.monotonic() > begin + WAIT:
                    return {"error": f"the first job does not train\n{ask('status')[0]}\n{server.says()}"}
                time.sleep(0.1)
        beside = done_steps(ask)
        while not all(path.exists() for path in saved.values()):
            if time.monotonic() > begin + WAIT:
                return {"error": f"the jobs do not end\n{ask('status')[0]}\n{server.says()}"}
            time.sleep(0.2)
        time.sleep(0.5)
    return {"took_s": round(time.monotonic() - begin, 1), "beside_from_step": beside} | compared(lab, saved, steps)


def done_steps(ask):
    """Steps that the first job has done."""
    jobs = parsed(ask("status")[0] or '{"jobs": []}')["jobs"]
    return next((job["step"] for job in jobs if job["job"] == "a"), 0)


def serving(lab):
    """Rows that share a batch, and requests at a time, get the answers that each row gets by itself."""
    plan, at = lab.folder / "inference.plan", 8765 + os.getpid() % 1000
    _, wrong = lab.call(lab.folder / "memc", "compile", lab.folder / "resnet18.onnx", "--inference", "--dim=batch=8", "--device",
                        lab.prepared["profile"], "--no-mem-rewrite", "-o", plan, "--json")
    if wrong:
        return wrong
    row = lambda seed: [(n * 7919 + seed * 104729) % 1000 / 1000 for n in range(3 * 224 * 224)]
    request = lambda *seeds: json.dumps({"inputs": [{"name": name, "shape": [len(seeds), 3, 224, 224], "datatype": "FP32",
                                                     "data": [x for seed in seeds for x in row(seed)]}]}).encode()
    with Server(lab, lab.folder / "memrun", "serve", plan, "--device", lab.device, "--http", f"127.0.0.1:{at}") as server:
        begin = time.monotonic()
        while True:
            try:
                about = fetched(at, "GET", "/v2/models/resnet18", None)
                break
            except (OSError, ValueError) as error:
                if time.monotonic() > begin + WAIT or server.process.poll() is not None:
                    return {"error": f"the server does not answer: {error}\n{server.says()}"}
                time.sleep(0.2)
        start_s, name = time.monotonic() - begin, about["inputs"][0]["name"]
        ask = lambda *seeds: fetched(at, "POST", "/v2/models/resnet18/infer", request(*seeds))["outputs"][0]["data"]
        alone = [ask(seed) for seed in range(8)]
        together = ask(*range(8))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            at_once = list(pool.map(ask, range(8)))
        begin = time.monotonic()
        for _ in range(5):
            ask(0)
        request_ns = (time.monotonic() - begin) / 5e-9
    alike = together == [x for answer in alone for x in answer] and at_once == alone and len({tuple(answer) for answer in alone}) == 8
    return {"alike": alike, "start_s": round(start_s, 1), "request_ns": request_ns}


def fetched(at, verb, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", at, timeout=30)
    connection.request(verb, path, body, {"Content-Type": "application/json"} if body else {})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise ValueError(f"{answer.status}: {text[:300]!r}")
    return json.loads(text)


CELLS = {"two jobs in one plan": joint, "jobs that come and go": controller, "requests over HTTP": serving}


def names(lab):
    return list(CELLS) if "resnet50-8" in lab.models("bits") else []


def jobs(lab):
    for name in names(lab):
        lab.cell("jobs", name, lambda: CELLS[name](lab))
