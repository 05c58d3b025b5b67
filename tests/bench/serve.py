"""Loads `memrun serve` at rates up to twice what it carries, and prints a table: latency, throughput, refusals, memory.

Usage: python3 tests/bench/serve.py [--memc FILE] [--memrun FILE] [--model ONNX] [--batch N] [--seconds S] [--json OUT]
Needs: builds of memc and memrun; Python alone. Takes some minutes.

First as many clients as the queue holds ask without a pause, five times: the best is what the server carries. Then requests of one row
arrive at random (a Poisson process with a fixed seed) at shares of that rate, whether or not others are answered. A
request's time counts from its arrival, also where no client was free to send it. Every answer is compared with the first.
The clients run on the same machine and take part of it.
"""
import argparse
import array
import http.client
import json
import pathlib
import random
import re
import socket
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0)


class Server:
    """A server of plans, each as `NAME=FILE`."""

    def __init__(self, args, *plans):
        command = [args.memrun, "serve", *plans, "--http", "127.0.0.1:0", "--queue", args.queue,
                   "--max-delay", args.max_delay, "--threads", args.threads]
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            found = re.search(r"http://([0-9.]+):(\d+)", line)
            if found:
                self.host, self.port = found[1], int(found[2])
                return
        raise SystemExit("memrun serve has ended")

    def rss(self):
        """Resident MiB."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=120)

    def get(self, path):
        client = self.connect()
        client.request("GET", path)
        return client.getresponse().read()

    def end(self):
        """Exit code after SIGTERM."""
        self.process.terminate()
        return self.process.wait(60)


def request(server, model="m"):
    """Headers and body of a request of one row, in binary."""
    inputs, tensors = [], b""
    for port in json.loads(server.get(f"/v2/models/{model}"))["inputs"]:
        shape = [1, *port["shape"][1:]]
        count = 1
        for extent in shape:
            count *= extent
        draw = random.Random(1)
        data = array.array("f", (draw.gauss(0, 1) for _ in range(count))).tobytes()
        inputs.append({"name": port["name"], "datatype": port["datatype"], "shape": shape,
                       "parameters": {"binary_data_size": len(data)}})
        tensors += data
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return {"Inference-Header-Content-Length": str(len(text))}, text + tensors


class Load:
    """Requests that arrive at given times, sent by a number of clients, each for one of the models at random."""

    def __init__(self, server, message, clients, models=("m",)):
        self.server, self.clients, self.models = server, clients, models
        self.headers, self.body = message
        self.lock = threading.Lock()
        self.draw = random.Random(11)
        self.first = {}

    def ask(self, client, model="m"):
        """Status of one request; 0 where the connection failed, -1 for another answer than the first."""
        try:
            client.request("POST", f"/v2/models/{model}/infer", self.body, self.headers)
            reply = client.getresponse()
            answer = reply.read()
        except (OSError, http.client.HTTPException):
            client.close()
            return 0
        if reply.status == 200:
            with self.lock:
                first = self.first.setdefault(model, answer)
            if answer != first:
                return -1
        return reply.status

    def run(self, arrivals):
        """Times of answers and statuses; `arrivals` are seconds from the start."""
        todo, done = iter(arrivals), []
        start = time.perf_counter() + 0.1

        def client():
            connection = self.server.connect()
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            own = []
            while True:
                with self.lock:
                    at, model = next(todo, None), self.draw.choice(self.models)
                if at is None:
                    break
                time.sleep(max(0, start + at - time.perf_counter()))
                status = self.ask(connection, model)
                own.append((time.perf_counter() - start - at, status))
            with self.lock:
                done.extend(own)

        threads = [threading.Thread(target=client) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return done, time.perf_counter() - start


def carried(load, seconds):
    """Requests a second that are answered where clients ask without a pause."""
    answered, end = [], time.perf_counter() + seconds

    def client():
        connection, count = load.server.connect(), 0
        while time.perf_counter() < end:
            with load.lock:
                model = load.draw.choice(load.models)
            count += load.ask(connection, model) == 200
        with load.lock:
            answered.append(count)

    threads = [threading.Thread(target=client) for _ in range(load.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answered) / (time.perf_counter() - end + seconds)


def row(load, rate, seconds):
    draw, at, arrivals = random.Random(7), 0.0, []
    while at < seconds:
        at += draw.expovariate(rate)
        arrivals.append(at)
    before = load.server.rss()
    done, took = load.run(arrivals)
    times = sorted(t for t, status in done if status == 200)
    within = lambda share: 1e3 * times[min(len(times) - 1, int(len(times) * share))] if times else float("nan")
    refused = sum(status == 429 for _, status in done)
    return {"rate": rate, "sent": len(done), "answered_per_s": len(times) / took, "p50_ms": within(0.5),
            "p99_ms": within(0.99), "refused": refused, "other": len(done) - len(times) - refused,
            "rss_before_mib": before, "rss_after_mib": load.server.rss()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memc", default=ROOT / "target" / "release" / "memc")
    parser.add_argument("--memrun", default=ROOT / "target" / "release" / "memrun")
    parser.add_argument("--model", default=ROOT / "models" / "zoo" / "resnet20_cifar10.onnx")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--gpu-mem", default="peak*100%")
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--max-delay", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "m.plan"
        subprocess.run([str(word) for word in (
            args.memc, "compile", args.model, "--inference", "--dim", f"batch={args.batch}", "--device", "cpu",
            "--gpu-mem", args.gpu_mem, "-o", plan)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server = Server(args, f"m={plan}")
        begun = server.rss()
        # Twice as many clients as may wait: else the clients, not the server, would bound the queue.
        load = Load(server, request(server), 2 * args.queue + args.batch)
        few = Load(server, request(server), args.queue)
        # Others run on the machine: the best of some tries is what the server carries.
        rate = max(carried(few, args.seconds / 3) for _ in range(5))
        print(f"carried: {rate:.1f} requests/s")
        print("| offered, share | offered/s | answered/s | p50, ms | p99, ms | 429 | other errors | RSS before, after, MiB |")
        print("|---|---|---|---|---|---|---|---|")
        rows = []
        for share in SHARES:
            r = row(load, rate * share, args.seconds)
            rows.append({"share": share, **r})
            print(f"| {share:.2f} | {r['rate']:.0f} | {r['answered_per_s']:.0f} | {r['p50_ms']:.1f} | {r['p99_ms']:.1f} "
                  f"| {r['refused']} of {r['sent']} | {r['other']} | {r['rss_before_mib']:.1f}, "
                  f"{r['rss_after_mib']:.1f} |", flush=True)
        ended = server.rss()
        figures = server.get("/metrics").decode()
        counts = dict(re.findall(r'^memrun_batch_rows_(sum|count)\{model="m"\} (\S+)', figures, re.M))
        code = server.end()
        mean = float(counts["sum"]) / float(counts["count"])
        print(f"rows of a batch: {mean:.2f} of {args.batch} on average; RSS {begun:.1f} MiB at the start, {ended:.1f} at "
              f"the end; exit code {code}")
        if args.json:
            args.json.write_text(json.dumps({"carried_per_s": rate, "rows": rows, "rss_start_mib": begun,
                                             "rss_end_mib": ended, "exit_code": code}))


if __name__ == "__main__":
    main()
