"""Cut a model's weights over the "tp" axis of a mesh, as a plan says (see `plans`).

torch's parallelize_module skips a pattern that fits nothing with a warning, and forgets that two modules share a
weight. Here the first is an error, and the second is put right or refused.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ezpz.dist.tensor_parallel_dropout import drop_apart
from ezpz.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement


# Plans of tensor parallelism as data: which module is cut how, by the names of the module in the model.
#
# A plan maps patterns of module names (``layers.*.attention.wq``) to a ParallelStyle of torch or to one of these words,
# which Hugging Face's ``base_model_tp_plan`` uses as well (transformers 4.57 and 5):
#
# colwise              weight cut by output features, output stays cut
# rowwise              weight cut by input features, outputs are summed
# colwise_rep          colwise with the whole output on every rank   (also colwise_gather_output)
# rowwise_rep          rowwise for a whole input: embeddings         (also embedding_rowwise)
# sequence             whole weight, input cut along the sequence    (also sequence_parallel)
# replicate            whole weight, whole input
# gather_sequence      no weight: makes the module's first input whole, once for all projections inside
# cut_sequence         no weight: keeps this rank's part of the module's first input, along the sequence

STYLES = (
    "colwise",
    "rowwise",
    "colwise_rep",
    "colwise_gather_output",
    "rowwise_rep",
    "embedding_rowwise",
    "sequence",
    "sequence_parallel",
    "replicate",
    "gather_sequence",
    "cut_sequence",
)

# What a module does -> its name, or names, in a model. Copy and change one to describe a model with names of its own.
# "entry", where there is one, gets whole activations, and the sequence is cut there instead of behind the embedding:
# for models that read the sequence's length (positions, masks) from what the embedding returns.
LLAMA_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("tok_embeddings",),
    "norms": ("layers.*.attention_norm", "layers.*.ffn_norm", "norm"),
    "inputs": ("layers.*.attention", "layers.*.feed_forward"),
    "first": (
        "layers.*.attention.wq",
        "layers.*.attention.wk",
        "layers.*.attention.wv",
        "layers.*.feed_forward.w1",
        "layers.*.feed_forward.w3",
    ),
    "second": ("layers.*.attention.wo", "layers.*.feed_forward.w2"),
    "output": ("output",),
}
HUGGING_FACE_NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens",),
    "entry": ("model.layers.0",),
    "norms": ("model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm", "model.norm"),
    "inputs": ("model.layers.*.self_attn", "model.layers.*.mlp"),
    "first": (
        "model.layers.*.self_attn.q_proj",
        "model.layers.*.self_attn.k_proj",
        "model.layers.*.self_attn.v_proj",
        "model.layers.*.mlp.gate_proj",
        "model.layers.*.mlp.up_proj",
    ),
    "second": ("model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"),
    "output": ("lm_head",),
}


def llama_plan(
    *, sequence_parallel: bool = True, loss_parallel: bool = False, names: dict[str, tuple[str, ...]] | None = None
) -> dict[str, Any]:
    """Return a plan that covers every parameter of a Llama-style transformer.

    Attention must find its number of heads with ``view(batch, sequence, -1, head_dim)``: a rank has only its own heads.

    Args:
        sequence_parallel: Cut activations between the blocks along the sequence (dimension 1), so that norms and
            residuals take 1/tp of the memory; the sequence length must be a multiple of tp.
        loss_parallel: Leave logits cut along the vocabulary, for a loss inside of `loss_parallel`.
        names: `LLAMA_NAMES` (default), `HUGGING_FACE_NAMES`, or a dict of the same keys.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    names = names or LLAMA_NAMES
    between = Shard(1) if sequence_parallel else Replicate()
    styles: dict[str, Any] = {
        "embedding": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Replicate() if "entry" in names else between
        ),
        "entry": "cut_sequence" if sequence_parallel else None,
        "norms": "sequence" if sequence_parallel else "replicate",
        "inputs": "gather_sequence" if sequence_parallel else None,
        "first": "colwise",
        "second": RowwiseParallel(output_layouts=between),
        "output": ColwiseParallel(
            input_layouts=between,
            output_layouts=Shard(-1) if loss_parallel else Replicate(),
            use_local_output=not loss_parallel,
        ),
    }
    return {name: style for role, style in styles.items() if style is not None for name in names.get(role, ())}


def make_style(word: str) -> Any:
    """Return torch's ParallelStyle for a word, or the word itself where ezpz applies it (see `tensor_parallel`).

    Raises:
        UsageError: The word is none of `STYLES`.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    if word == "colwise":
        return ColwiseParallel()
    if word == "rowwise":
        return RowwiseParallel()
    if word in {"colwise_rep", "colwise_gather_output"}:
        return ColwiseParallel(output_layouts=Replicate())
    if word in {"rowwise_rep", "embedding_rowwise"}:
        return RowwiseParallel(input_layouts=Replicate())
    if word in {"sequence", "sequence_parallel"}:
        return SequenceParallel()
    if word in {"replicate", "gather_sequence", "cut_sequence"}:
        return word
    raise UsageError(
        f"unknown style {word!r} (from tp_plan); expected one of {', '.join(STYLES)} or a ParallelStyle of torch."
    )


def check_divisible(by: int, /, **sizes: int) -> None:
    """Check that sizes can be cut into equal parts, before torch fails far from the cause.

        check_divisible(tp, n_heads=config.n_heads, n_kv_heads=config.n_kv_heads, sequence=config.length)

    Args:
        by: Number of parts: the degree of tensor parallelism.
        **sizes: The sizes by their names.

    Raises:
        UsageError: One is no multiple of ``by``; it names the nearest that are, and degrees that fit all the sizes.
    """
    odd = {name: size for name, size in sizes.items() if size % by or size <= 0}
    if not odd:
        return
    (name, size), *others = odd.items()
    common = math.gcd(*sizes.values())
    fits = [str(degree) for degree in range(1, by) if common % degree == 0]
    near = [str(multiple) for multiple in (size // by * by, (size // by + 1) * by) if multiple > 0]
    also = f", nor {', '.join(f'{other}={value}' for other, value in others)}" if others else ""
    expected = [*([] if others else [f"{name}={' or '.join(near)}"]), f"tp={' or '.join(fits[-2:])}"]
    raise UsageError(f"{name}={size} cannot be cut into tp={by} equal parts{also}; expected {', or '.join(expected)}.")


# Names under which configurations tell numbers of heads; a rank must get whole heads.
_HEADS = ("n_heads", "n_head", "n_kv_heads", "num_heads", "num_attention_heads", "num_key_value_heads")


def loss_parallel() -> Any:
    """Return torch's context in which ``cross_entropy`` takes logits that are cut along the vocabulary.

    Loss and ``backward()`` belong inside. The plan must leave the logits cut: ``llama_plan(loss_parallel=True)``.
    """
    from torch.distributed.tensor.parallel import loss_parallel as torchs_own

    return torchs_own()


def find_plan(model: nn.Module, tp_plan: Mapping[str, Any] | None, degree: int) -> dict[str, Any]:
    """Return the plan given, or the one that the model brings as ``tp_plan``, an attribute or a method.

    Raises:
        UsageError: There is none, or it is no mapping.
    """
    plan: Any = tp_plan if tp_plan is not None else getattr(model, "tp_plan", None)
    if callable(plan):
        plan = plan()
    if not plan:
        raise UsageError(
            f"no plan for tp={degree}: {type(model).__name__} has no tp_plan (from wrap_model); expected names of "
            "modules "
            'and how they are cut. Pass tp_plan=ezpz.dist.llama_plan(), or {"layers.*.up": "colwise", '
            '"layers.*.down": "rowwise"}.'
        )
    if not hasattr(plan, "items"):
        raise UsageError(
            f"unusable tp_plan of type {type(plan).__name__}; expected a dict from module names to styles."
        )
    return dict(plan)


def apply_plan(model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, Any]) -> None:
    """Cut the modules that a plan names over a 1-D mesh, in place.

    Weights come from the first rank of the axis, also those that the plan leaves whole, so that ranks which compute
    the same thing hold the same numbers.

    Raises:
        UsageError: A pattern fits no module, a size is not divisible, or the plan tears shared weights apart.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import parallelize_module

    steps = [
        (name, module, make_style(style) if isinstance(style, str) else style)
        for pattern, style in plan.items()
        for name, module in _resolve(model, pattern)
    ]
    _check_sizes(model, steps, mesh.size())
    ties = list(_ties(model))
    frozen = [
        (module, name)
        for module in model.modules()
        for name, each in module.named_parameters(recurse=False)
        if not each.requires_grad
    ]
    for _, module, style in steps:
        if style == "replicate":
            _replicate(module, mesh)
        elif style == "gather_sequence":
            module.register_forward_pre_hook(_moves_first(mesh, Shard(1), Replicate()), with_kwargs=True)
        elif style == "cut_sequence":
            module.register_forward_pre_hook(_moves_first(mesh, Replicate(), Shard(1)), with_kwargs=True)
        else:
            _watch_sequence(module, style, mesh.size())
            parallelize_module(module, mesh, style)
    for places in ties:
        _tie_again(places)
    for module, name in frozen:  # torch makes new parameters, which would all be trained
        getattr(module, name).requires_grad_(False)
    _agree_on_whole_weights(model, mesh)
    drop_apart(model, mesh, [(module, style) for _, module, style in steps])


def _resolve(model: nn.Module, pattern: str) -> list[tuple[str, nn.Module]]:
    """Return the modules that a pattern names; ``*`` matches one part of a dotted name."""
    parts = pattern.split(".") if pattern else []
    matches = [
        (name, module)
        for name, module in model.named_modules()
        if len(own := name.split(".") if name else []) == len(parts)
        and all(fnmatchcase(part, pattern) for part, pattern in zip(own, parts, strict=True))
    ]
    if matches:
        return matches
    names = {".".join("*" if part.isdigit() else part for part in name.split(".")) for name, _ in model.named_modules()}
    near = nearest(pattern, sorted(names - {""}), 3, cutoff=0.3)
    raise UsageError(
        f"tp_plan names {pattern!r}, but {type(model).__name__} has no such module; expected a name of "
        f"model.named_modules(){', for example ' + ', '.join(near) if near else ''}."
    )


def _check_sizes(model: nn.Module, steps: list[tuple[str, nn.Module, Any]], degree: int) -> None:
    from torch import nn
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    for holder in (model, getattr(model, "config", None), getattr(model, "args", None)):
        for name in _HEADS:
            heads = getattr(holder, name, None)
            if isinstance(heads, int):
                check_divisible(degree, **{name: heads})
    for name, module, style in steps:
        if isinstance(style, (ColwiseParallel, RowwiseParallel)) and not isinstance(module, (nn.Linear, nn.Embedding)):
            inside = [each for each, part in module.named_modules() if isinstance(part, nn.Linear)]
            raise UsageError(
                f"tp_plan cuts {name!r}, of type {type(module).__name__}; expected an nn.Linear or nn.Embedding, which "
                f"can be cut.{f' Name the one inside of it: {name}.{inside[0]}.' if inside else ''}"
            )
        if isinstance(module, nn.Linear) and isinstance(style, ColwiseParallel):
            if style.output_layouts != (Replicate(),):  # a gathered output may have been cut unevenly
                check_divisible(degree, **{f"{name}.out_features": module.out_features})
        elif isinstance(module, nn.Linear) and isinstance(style, RowwiseParallel):
            check_divisible(degree, **{f"{name}.in_features": module.in_features})


def _watch_sequence(module: nn.Module, style: Any, degree: int) -> None:
    """Refuse batches whose sequence cannot be cut equally: ranks would exchange parts of different sizes and hang."""
    from torch import nn
    from torch.distributed.tensor import Shard

    if not isinstance(module, nn.Embedding) or getattr(style, "output_layouts", None) != (Shard(1),):
        return

    def check(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        check_divisible(degree, sequence=inputs[0].shape[1])

    module.register_forward_pre_hook(check)


def _replicate(module: nn.Module, mesh: DeviceMesh) -> None:
    """Hold whole weights as DTensors, so that clipping and optimizers see one kind of parameter on one mesh."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_module

    def enter(_module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        return tuple(
            DTensor.from_local(each, mesh, (Replicate(),), run_check=False) if _is_plain(each) else each
            for each in inputs
        )

    def leave(_module: nn.Module, output: Any, _mesh: DeviceMesh) -> Any:
        return output.to_local() if isinstance(output, DTensor) else output

    distribute_module(module, mesh, None, enter, leave)


def _moves_first(mesh: DeviceMesh, given: Placement, wanted: Placement) -> Any:
    """Return a hook that brings the first tensor of a call from one placement to another, whatever else is passed.

    torch's PrepareModuleInput must know how many arguments a module takes, which differs between models.
    """
    import torch
    from torch.distributed.tensor import DTensor

    def moved(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if wanted.is_shard():
            check_divisible(mesh.size(), sequence=tensor.shape[1])
        if _is_plain(tensor):
            tensor = DTensor.from_local(tensor, mesh, (given,), run_check=False)
        there = tensor.redistribute(placements=(wanted,))
        return there.to_local() if wanted.is_shard() else there  # what a residual adds to it is plain, too

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        if args:
            return (moved(args[0]), *args[1:]), kwargs
        first = next(iter(kwargs))
        return args, {**kwargs, first: moved(kwargs[first])}

    return hook


def _is_plain(value: Any) -> bool:
    import torch
    from torch.distributed.tensor import DTensor

    return isinstance(value, torch.Tensor) and not isinstance(value, DTensor)


def _ties(model: nn.Module) -> Iterator[list[tuple[str, nn.Module, str]]]:
    """Yield the places of every parameter that several modules share."""
    places: dict[int, list[tuple[str, nn.Module, str]]] = {}
    for name, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((name, module, own))
    yield from (shared for shared in places.values() if len(shared) > 1)


def _tie_again(places: list[tuple[str, nn.Module, str]]) -> None:
    kept: torch.nn.Parameter = getattr(places[0][1], places[0][2])
    for _, module, own in places[1:]:
        if getattr(getattr(module, own), "placements", None) != getattr(kept, "placements", None):
            names = " and ".join(f"{name}.{own}" for name, _, own in places)
            raise UsageError(
                f"tp_plan cuts one shared weight in two ways: {names} are the same parameter; expected the same cut "
                "(embedding rowwise and output colwise), or none. Change the plan, or do not tie them."
            )
        module.register_parameter(own, kept)


def _agree_on_whole_weights(model: nn.Module, mesh: DeviceMesh) -> None:
    import torch
    import torch.distributed as dist

    group = mesh.get_group()
    source = dist.get_global_rank(group, 0)
    for parameter in model.parameters():
        local = parameter.detach()
        if hasattr(local, "placements"):
            if not all(placement.is_replicate() for placement in local.placements):
                continue
            local = local.to_local()
        if local.is_meta:
            continue
        sent = local.to(mesh.device_type)
        with torch.no_grad():
            dist.broadcast(sent, src=source, group=group)
            if sent is not local:
                local.copy_(sent)
