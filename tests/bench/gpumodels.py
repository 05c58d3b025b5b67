"""The models of gpu.py's stages, and the budgets of the plans that `prepare` makes of them."""

MOMENTUM = "momentum:lr=0.01,momentum=0.9"
# Samples or tokens of a sample, by network, that throughput is counted in.
TOKENS = {"bert_base": 384, "bert_large": 384, "gpt2_small": 1024}


def zoo(net, batch, optimizer):
    """Path below models/, options of memc, samples and tokens of a step."""
    loss = "output" if net == "inception_v3" else "cross-entropy:axis=1" if net.startswith("bert") else "cross-entropy"
    options = [f"--dim=batch={batch}", f"--loss={loss}", f"--optimizer={optimizer}"]
    return {"file": f"zoo/{net}.onnx", "options": options, "net": net, "batch": batch, "units": batch * TOKENS.get(net, 1)}


def artifact(name):
    return {"file": f"{name}/training_model.onnx", "options": [], "net": name, "batch": None, "units": None}


SMALL = {name: artifact(name) for name in ("mlp_s", "cnn_bn", "resnet_tiny", "bert_tiny_nodrop", "bert_tiny_dropout", "lstm_sgd")}
# The models of each stage, by the name that plans and results have. Without Adam in `bits`, so that the states of a first step
# are near the CPU's: Adam makes steps of the whole rate of rounding noise.
FULL = {
    "bits": SMALL | {"resnet18-8": zoo("resnet18", 8, MOMENTUM), "resnet50-8": zoo("resnet50", 8, MOMENTUM),
                     "bert_base-2": zoo("bert_base", 2, MOMENTUM)},
    "throughput": {f"{net}-{batch}": zoo(net, batch, optimizer) for net, batch, optimizer in (
        ("bert_base", 16, "adamw"), ("resnet50", 64, MOMENTUM), ("gpt2_small", 4, "adamw"))},
    "accuracy": {f"{net}-{batch}": zoo(net, batch, optimizer) for net, batch, optimizer in (
        ("bert_base", 16, "adamw"), ("resnet50", 64, MOMENTUM), ("gpt2_small", 4, "adamw"), ("resnet18", 64, MOMENTUM),
        ("vit_b_16", 32, "adamw"), ("inception_v3", 32, MOMENTUM))},
    # Arenas of the unplanned step, as `memc estimate --no-mem-rewrite` has them on the h100 profile: 42.9, 37.8, 43.6 and 31.1 GiB;
    # modelled steps of 0.40, 0.52, 1.4 and 0.37 s. A host of 64 GiB is enough, and parameters are few enough to be drawn in half a
    # minute (one core does 20 million a second, so that SwapAdvisor's wider networks would take minutes for each run).
    "ideal": {f"{net}-{batch}": zoo(net, batch, optimizer) for net, batch, optimizer in (
        ("resnet152", 256, MOMENTUM), ("bert_large", 32, "adamw"), ("inception_v4_4", 64, "sgd"), ("nasnet_a_r25", 16, "sgd"))},
}
QUICK = {
    "bits": {"mlp_s": SMALL["mlp_s"], "cnn_bn": SMALL["cnn_bn"], "resnet20_cifar10-4": zoo("resnet20_cifar10", 4, MOMENTUM)},
    "accuracy": {"resnet20_cifar10-32": zoo("resnet20_cifar10", 32, MOMENTUM)},
    "throughput": {"resnet50-1": zoo("resnet50", 1, MOMENTUM)},
    "ideal": {"resnet20_cifar10-64": zoo("resnet20_cifar10", 64, MOMENTUM)},
}
# Percent of the arena of the unplanned step, of plans that `prepare` makes.
SHARES = {"bits": [100, 60, 40], "accuracy": [100], "throughput": [100], "ideal": [100, 50, 25, 12.5]}
