"""The file of results of `gpu.py run`: a JSON object a line, of which a killed run may leave the last one cut off."""
import json
import pathlib

# What a row is known by; a row replaces an earlier one that is known by the same.
KINDS = {"run": lambda row: json.dumps(row["run"], sort_keys=True), "cell": lambda row: (row["stage"], row["cell"]),
         "complete": lambda row: row["stage"], "failure": lambda row: row.get("command"), "measured": lambda row: row["measured"]}


def key(row):
    return next(((kind, known_by(row)) for kind, known_by in KINDS.items() if kind in row), None)


def load(path):
    """The rows of a file, or of results.jsonl of a folder, by their keys. What cannot be rows ends the program with one line."""
    path = pathlib.Path(path)
    path = path / "results.jsonl" if path.is_dir() else path
    *lines, last = path.read_text(errors="replace").split("\n")
    rows = {}
    for n, line in enumerate([*lines, last], 1):
        try:
            row = json.loads(line or "null")
            if row is not None:
                at = key(row)
                rows.pop(at, None)
                rows[at] = row
        except (ValueError, KeyError, TypeError, AttributeError):
            if n <= len(lines):
                raise SystemExit(f"{path}: line {n} is no row of `gpu.py run`: take it out") from None
    if None in rows:
        raise SystemExit(f"{path} has rows that are not of `gpu.py run`: give the results.jsonl that it wrote")
    return rows


def mend(path):
    """Takes off the end of a line that was cut off, so that the next row has a line of its own."""
    data = path.read_bytes()
    whole = data[:data.rfind(b"\n") + 1]
    if data != whole:
        path.write_bytes(whole)


def differing(one, other):
    """In words, how a run is not like another."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return "; ".join(f"{name} {short(one.get(name))} and {short(other.get(name))}" for name in names)


def short(value):
    if isinstance(value, dict):
        return ", ".join(f"{name} {version or 'missing'}" for name, version in value.items()) or "none"
    return "none" if value is None else str(value)


def short_row(row):
    """A row in a line, for who watches a run."""
    of = f"{row['stage']}: {row['cell']}" if "cell" in row else next((f"{kind} {row[kind]}" for kind in KINDS if kind in row), "")
    if "complete" in row:
        said = [f"{of['verdict']}: {text} {of['detail']}" for text, of in row["criteria"].items()]
        return "\n".join([f"{row['stage']} is {'complete' if row['complete'] else 'not complete: ' + row['why']}", *said])
    if "run" in row:
        return f"on {row['run']['gpu'] or row['run']['device']} with {short(row['run']['libraries'])}"
    if "error" in row:
        return f"{of}: FAILED: {(row['error'].splitlines() or [''])[-1][:200]}"
    told = [f"{row['step_ns'] / 1e6:,.2f} ms" if "step_ns" in row else "",
            f"{row['error_of_step']:+.1%}" if "error_of_step" in row else "",
            f"{len(row['refused'])} refused" if row.get("refused") else "",
            next((word for word in ("infeasible", "skipped", "oom") if word in row), "")]
    return f"{of}: {', '.join(filter(None, told)) or 'done'}"


def one_run(path, rows):
    """What was run, of rows that may be judged together."""
    runs = [row["run"] for row in rows.values() if "run" in row]
    if not runs or not any("cell" in row or "complete" in row for row in rows.values()):
        raise SystemExit(f"{path} has no results yet: `gpu.py run` writes them")
    if not {"device", "gpu", "programs", "quick", "libraries"} <= runs[0].keys():
        raise SystemExit(f"{path} is of another version of gpu.py: report it with that one")
    for other in runs[1:]:
        raise SystemExit(f"{path} mixes results ({differing(runs[0], other)}): report those of each by themselves")
    return runs[0]
