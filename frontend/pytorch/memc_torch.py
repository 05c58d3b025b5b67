"""States of memrun in PyTorch, and back: weights, buffers and the optimizer's own tensors.

One file without parts: copy it beside your script. It needs torch, safetensors and numpy. It neither exports models nor
runs memc. memrun saves the moments of parameter X as X.momentum0 and X.momentum1, the count of steps of an optimizer that
needs one as `step`, and the number of steps done in the file's metadata.
"""
import fnmatch

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file


def parameter_names(model, path=None):
    """Names of the trained parameters, tied ones under all their names; written to `path`, for `memc --parameters`."""
    names = [name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    if path:
        with open(path, "w") as file:
            file.write("\n".join(names))
    return names


def load(path, model, optimizer=None, micro_steps=1, allow_missing=()):
    """Puts a state that memrun saved into the model and its optimizer, or a list of those; returns the steps done.

    Every parameter must be in the file, but for those that match a pattern of `allow_missing`: the loss does not depend
    on them. Every tensor of the file must have its place, moments too where an optimizer is given. Buffers that no step
    changes are not in the file, and stay as they are. num_batches_tracked of each BatchNorm in training mode becomes the
    number of micro-steps, of which a step has `micro_steps` (memc --accumulate). The optimizer then goes on as if it had
    taken the steps itself. Its learning rates stay as they are: step a scheduler as often as steps were done.
    """
    with safe_open(path, "pt") as file:
        steps = int((file.metadata() or {}).get("step", 0))
        saved = {name: file.get_tensor(name) for name in file.keys()}
    used = {"step"} | {name for name, _ in model.named_buffers()}
    state, missing, shapes = {}, [], []
    for tensor, names in _named(model).values():
        found = [name for name in names if name in saved]
        used.update(found)
        if not found and isinstance(tensor, torch.nn.Parameter):
            missing += [name for name in names[:1] if not any(fnmatch.fnmatch(name, glob) for glob in allow_missing)]
        shapes += [name for name in found if saved[name].shape != tensor.shape]
        state.update((name, saved[found[0]] if found else tensor.detach()) for name in names)
    for name, module in model.named_modules():
        if getattr(module, "num_batches_tracked", None) is not None and module.training:
            state[f"{name}.num_batches_tracked".lstrip(".")] = torch.tensor(steps * micro_steps)
    updates = []
    for own, p, fields, names in _optimized(model, optimizer):
        keys = [[f"{n}.momentum{i}" for n in names if f"{n}.momentum{i}" in saved] for i in range(len(fields))]
        if fields and all(keys):
            used.update(key for found in keys for key in found)
            new = {field: saved[found[0]].to(p) for field, found in zip(fields, keys)}
            if fields != ["momentum_buffer"]:
                new["step"] = torch.tensor(float(saved.get("step", steps)))
            updates.append((own, p, new))
    extra = [name for name in saved if name not in used and (optimizer or not _is_moment(name))]
    if missing or extra or shapes:
        raise ValueError(f"{path} does not fit the model and its optimizer: it lacks {missing or 'nothing'} (allow_missing "
                         f"may name parameters that the loss does not depend on), {extra or 'nothing'} in it has no place, "
                         f"and {shapes or 'nothing'} has another shape")
    model.load_state_dict(state, strict=True)
    for own, p, new in updates:
        own.state[p] = new
    return steps


def save(path, model, optimizer=None, like=None, steps=0):
    """Writes the state of the model as safetensors, for memc and memrun.

    Without `like`, every tensor once, with the other names of tied ones in the metadata: for `memc compile --checkpoint`.
    `like` is any state that memrun saved of the plan. With it, the file has exactly the plan's states, those of the
    optimizer too, after `steps` steps: for `memrun --resume`, which goes on with step `steps + 1` of data and schedule,
    and for `memrun --init`, which begins with the first.
    """
    tensors, metadata = {}, {"step": str(steps)}
    for tensor, names in _named(model).values():
        for name in names:
            if like or name == names[0]:
                tensors[name] = tensor
            else:
                metadata[name] = names[0]
    if like:
        tensors |= dict(model.named_buffers()) | {"step": torch.tensor(steps)}
        for own, p, fields, names in _optimized(model, optimizer):
            for i, field in enumerate(fields):
                moment = own.state[p].get(field) if p in own.state else None
                tensors.update((f"{n}.momentum{i}", torch.zeros_like(p) if moment is None else moment) for n in names)
            if p in own.state and "step" in own.state[p]:
                tensors["step"] = own.state[p]["step"]
        with safe_open(like, "pt") as file:
            lacking = [name for name in file.keys() if name not in tensors]
            if lacking:
                raise ValueError(f"the model and its optimizer do not have {lacking} of {like}")
            tensors = {name: tensors[name].to(file.get_tensor(name).dtype) for name in file.keys()}
            metadata["source"] = file.metadata()["source"]
    save_file({name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}, path, metadata)


def token_file(tokens, path):
    """Writes numbers below 65,536 as `memrun --input x=@FILE:u16` reads them, larger ones as `x=@FILE:u32` does."""
    tokens = np.asarray(tokens)
    tokens.astype(np.uint16 if tokens.max(initial=0) < 1 << 16 else np.uint32).tofile(path)


def order(units, seed, epoch):
    """Numbers of the samples in the order in which `memrun --shuffle SEED` reads them; epochs count from 0 here."""
    def mix(x):
        x = x + np.uint64(0x9e3779b97f4a7c15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return x ^ (x >> np.uint64(31))

    def key(x):
        return int(mix(np.array([x % (1 << 64)], np.uint64))[0])

    x, start = np.arange(units, dtype=np.uint64), key(key(seed) + epoch)
    for i in range(64 + 8 * (units - 1).bit_length()):
        of_round = key(start + i)
        partner = (np.uint64(of_round % units + units) - x) % np.uint64(units)
        high = mix(np.uint64(of_round) ^ mix(np.maximum(x, partner))) >> np.uint64(63)
        x = np.where(high == 1, partner, x)
    return x.astype(np.int64)


def _named(model):
    """Every tensor of the state_dict with all its names, by id: a tied parameter has several."""
    out = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        out.setdefault(id(tensor), (tensor, []))[1].append(name)
    return out


def _optimized(model, optimizer):
    """Every optimizer with its parameters, the names in PyTorch of momentum0 and momentum1, and the parameter's names."""
    named = _named(model)
    for own in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer] if optimizer else []:
        for group in own.param_groups:
            if isinstance(own, torch.optim.SGD):
                fields = ["momentum_buffer"] if group["momentum"] else []
            elif isinstance(own, torch.optim.Adagrad):
                fields = ["sum"]
            elif isinstance(own, (torch.optim.Adam, torch.optim.AdamW)) and not group["amsgrad"]:
                fields = ["exp_avg", "exp_avg_sq"]
            else:
                raise ValueError(f"memc has no {type(own).__name__} with these options")
            yield from ((own, p, fields, named[id(p)][1]) for p in group["params"])


def _is_moment(name):
    return name.endswith((".momentum0", ".momentum1"))
