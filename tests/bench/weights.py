"""Memory and time that memc takes for models of large weights, in a file beside the model and in the model itself.

Usage: python tests/bench/weights.py [--bin FOLDER]
Needs: a release build of memc; onnx; Linux. The large file is sparse: it takes no room on the disk.
"""
import argparse
import multiprocessing
import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def model(path, width, external):
    """Writes ten square layers."""
    import onnx
    from onnx import TensorProto, helper
    nodes, weights, size = [], [], width * width * 4
    for i in range(10):
        weight = TensorProto(name=f"layers.{i}.weight", dims=[width, width], data_type=TensorProto.FLOAT)
        if external:
            weight.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("offset", i * size), ("length", size)):
                weight.external_data.add(key=key, value=str(value))
        else:
            weight.raw_data = bytes(size)
        weights.append(weight)
        nodes.append(helper.make_node("MatMul", [f"y{i}", weight.name], [f"y{i + 1}"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in ("y0", "y10")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="pytorch")
    path.write_bytes(made.SerializeToString())
    if external:
        with open(path.with_name("weights.bin"), "wb") as file:
            file.truncate(10 * size)


def measured(words):
    """Seconds, and the largest resident set in MiB."""
    begin = time.perf_counter()
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, words
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "target" / "release")
    args = parser.parse_args()
    print("| weights | command | seconds | resident, MiB |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, width, external in (("beside the model", 16384, True), ("in the model", 6144, False)):
            # In a process of its own: what this one takes would count for memc.
            maker = multiprocessing.get_context("fork").Process(target=model, args=(folder / "model.onnx", width, external))
            maker.start()
            maker.join()
            size = 10 * width * width * 4
            words = [folder / "model.onnx", "--loss", "mse", "--optimizer", "sgd", "--dim", "batch=32"]
            seconds, resident = measured([args.bin / "memc", "estimate", *words])
            print(f"| {size / 2**30:.1f} GiB {name} | `estimate` | {seconds:.2f} | {resident:.0f} |")


if __name__ == "__main__":
    main()
