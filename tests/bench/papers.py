#!/usr/bin/env python3
"""The published tables of five papers on memory planning, beside what memc's planners do on the same networks.

    papers.py [--only TABLE,...] [--planners NAME,...] [--limit S] [--skip NETWORK,...]
              [--json FILE]

Writes tests/bench/results/papers.md. Needs `cargo build --release`, and Python without packages. Plans are kept in
target/papers, so that only what has changed is planned again; `--planners memc` plans anew for this planner alone and
takes the others' plans from earlier builds. `--only` runs some tables and leaves the other sections of the page alone.
"""

import argparse
import json
import re
import sys
import textwrap

sys.dont_write_bytecode = True

from lab import ROOT, Lab
from papertables import HEAD, TABLES, TAIL

PAGE = ROOT / "tests/bench/results/papers.md"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TABLES))
    parser.add_argument("--planners", help="plan anew for these alone")
    parser.add_argument("--skip", default="", help="networks for which nothing is planned that is not there already")
    parser.add_argument("--json", metavar="FILE", help="write every plan's figures here")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one plan")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - set(TABLES):
        parser.error(f"no table is called {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    lab = Lab(args.planners and args.planners.split(","), args.limit, args.skip.split(","))
    for name in names:
        body = TABLES[name].make(lab)
        print(f"{name}\n{body}", flush=True)
        # Tables take long: what is there is written.
        write(name, body)
    if args.json:
        with open(args.json, "w") as out:
            json.dump([row["report"] for row in lab.used.values()], out, indent=1)


def wrapped(text):
    """Paragraphs and list items in lines of 110 columns."""
    blocks = re.split(r"\n(?=\n|- )", text)
    fill = lambda block: textwrap.fill(" ".join(block.split()), 110, subsequent_indent="  " if block.startswith("- ") else "",
                                       break_long_words=False, break_on_hyphens=False)
    return "\n".join("\n" + fill(b.lstrip("\n")) if b.startswith("\n") else fill(b) for b in blocks) + "\n" * text.endswith("\n")


def write(name, body):
    """Replaces one table of the page; the text around the tables is that of the present program."""
    old = PAGE.read_text() if PAGE.exists() else ""
    page = wrapped(HEAD)
    for other, t in TABLES.items():
        begin, end = f"<!-- begin: {other} -->\n", f"<!-- end: {other} -->\n"
        kept = re.search(f"{begin}(.*?){end}", old, re.S)
        figures = body if other == name else kept.group(1) if kept else "Not measured.\n"
        page += f"\n## {t.title}\n\n{begin}{figures}{end}\n{wrapped(t.notes.strip())}\n"
    PAGE.write_text(page + "\n" + wrapped(TAIL))


if __name__ == "__main__":
    main()
