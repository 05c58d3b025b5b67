"""The list of networks: how each is built, how many parameters it is known to have, and a small instance to run."""

from dataclasses import dataclass, field
from typing import Callable

from . import densenet, inception, mobile, nasnet, recurrent, resnet, transformer, vgg


@dataclass
class Net:
    """`parameters` is the published count of trained elements, or None where none is published."""

    name: str
    build: Callable
    options: dict
    parameters: int | None
    small: dict = field(default_factory=dict)
    committed: bool = True

    def graph(self, **changes):
        return self.build(self.name, **{**self.options, **changes})


def _nets():
    narrow = {"size": 32, "divide": 8}
    for depth, count in ((11, 132_863_336), (13, 133_047_848), (16, 138_357_544), (19, 143_667_240)):
        yield Net(f"vgg{depth}", vgg.imagenet, {"depth": depth}, count, narrow)
    for depth in (11, 13, 16, 19):
        yield Net(f"vgg{depth}_cifar10", vgg.cifar, {"depth": depth}, None, {"divide": 8})

    narrow = {"size": 64, "base": 8}
    counts = ((18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808))
    for depth, count in counts:
        yield Net(f"resnet{depth}", resnet.resnet, {"depth": depth}, count, narrow)
    for depth, count in ((18, 11_173_962), (34, 21_282_122), (50, 23_520_842), (101, 42_512_970)):
        options = {"depth": depth, "size": 32, "classes": 10, "small": True}
        yield Net(f"resnet{depth}_cifar10", resnet.resnet, options, count, {"size": 16, "base": 8})
    options = {"depth": 50, "groups": 32, "group_width": 4}
    yield Net("resnext50_32x4d", resnet.resnet, options, 25_028_904, {"size": 64, "base": 32})
    for wide in (4, 10):
        yield Net(f"wresnet152_{wide}", resnet.resnet, {"depth": 152, "widen": wide}, None, {"size": 64, "base": 1})
    for name, residual in (("plain20_cifar10", False), ("resnet20_cifar10", True)):
        yield Net(name, resnet.cifar, {"depth": 20, "residual": residual}, 269_722, {"base": 4})

    narrow = {"size": 64, "divide": 8}
    yield Net("mobilenet", mobile.mobilenet, {}, 4_231_976, narrow)
    yield Net("mobilenet_v2", mobile.mobilenet_v2, {}, 3_504_872, narrow)
    yield Net("squeezenet1_0", mobile.squeezenet, {"version": "1_0"}, 1_248_424, narrow)
    yield Net("squeezenet1_1", mobile.squeezenet, {"version": "1_1"}, 1_235_496, narrow)
    yield Net("densenet121", densenet.densenet, {}, 7_978_856, {"size": 32, "growth": 4, "stem": 8})
    yield Net("inception_v3", inception.v3, {}, 27_161_264, {"size": 107, "scale": 0.05})
    yield Net("inception_v4", inception.v4, {}, 42_679_816, {"size": 75, "scale": 0.05})
    yield Net("inception_v4_4", inception.v4, {"scale": 4}, None, {"size": 75, "scale": 0.1})
    small = {"size": 35, "repeats": 2, "penultimate": 192, "stem": 4}
    large = {"penultimate": 4032, "stem": 96, "size": 331}
    yield Net("nasnet_a_r25", nasnet.nasnet, {"repeats": 25, **large}, None, small)
    # Not in the papers' set: these prove the generator against published counts.
    yield Net("nasnet_a_large", nasnet.nasnet, {"repeats": 6, **large}, 88_753_150, small, committed=False)
    options = {"repeats": 4, "penultimate": 1056, "stem": 32, "size": 224, "skip_reduction": False}
    yield Net("nasnet_a_mobile", nasnet.nasnet, options, 5_289_978, small, committed=False)

    small = {"hidden": 4, "steps": 3, "vocabulary": 7}
    yield Net("rnn_8_8k", recurrent.rnn, {"layers": 8, "hidden": 8192}, None, small)
    yield Net("brnn_4_8k", recurrent.rnn, {"layers": 4, "hidden": 8192, "bidirectional": True}, None, small)

    small = {"layers": 2, "width": 16, "heads": 2, "sequence": 6, "vocabulary": 11, "positions": 8}
    size = {"sequence": 384}
    yield Net("bert_base", transformer.bert, {"layers": 12, "width": 768, "heads": 12, **size}, 108_893_186, small)
    yield Net("bert_large", transformer.bert, {"layers": 24, "width": 1024, "heads": 16, **size}, 334_094_338, small)
    small = {"layers": 2, "width": 16, "heads": 2, "sequence": 6, "vocabulary": 11}
    sizes = (
        ("small", 12, 768, 12, 124_439_808),
        ("medium", 24, 1024, 16, 354_823_168),
        ("large", 36, 1280, 20, 774_030_080),
        ("xl", 48, 1600, 25, 1_557_611_200),
    )
    for size, layers, width, heads, count in sizes:
        options = {"layers": layers, "width": width, "heads": heads}
        yield Net(f"gpt2_{size}", transformer.gpt2, options, count, small)
    small = {"layers": 2, "width": 16, "heads": 2, "patch": 4, "size": 8, "classes": 5}
    for size, layers, width, heads, count in (("b", 12, 768, 12, 86_567_656), ("l", 24, 1024, 16, 304_326_632)):
        options = {"layers": layers, "width": width, "heads": heads}
        yield Net(f"vit_{size}_16", transformer.vit, options, count, small)


NETS = list(_nets())
