"""Writes models/gen/gpt_text.dynamic.onnx: a small language model whose sequence length is a symbolic dimension.

Packages: onnx (1.23.2 was used).

    python models/gen/text.py                        # same bytes every time
    python models/gen/text.py --layers 4 --width 256 --positions 512 -o FILE    # another size
"""

import argparse
import sys
from pathlib import Path

sys.dont_write_bytecode = True

from nets.graph import encode
from nets.transformer import text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=61)
    parser.add_argument("--positions", type=int, default=64)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "gpt_text.dynamic.onnx")
    args = parser.parse_args()
    graph = text("gpt_text", args.layers, args.width, args.heads, args.vocabulary, args.positions)
    args.output.write_bytes(encode(graph.model()))


if __name__ == "__main__":
    main()
