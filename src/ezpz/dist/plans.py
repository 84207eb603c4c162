"""Plans of tensor parallelism as data: which module is cut how, by the names of the module in the model.

A plan maps patterns of module names (``layers.*.attention.wq``) to a ParallelStyle of torch or to one of these words,
which Hugging Face's ``base_model_tp_plan`` uses as well (transformers 4.57 and 5):

    colwise              weight cut by output features, output stays cut
    rowwise              weight cut by input features, outputs are summed
    colwise_rep          colwise with the whole output on every rank   (also colwise_gather_output)
    rowwise_rep          rowwise for a whole input: embeddings         (also embedding_rowwise)
    sequence             whole weight, input cut along the sequence    (also sequence_parallel)
    replicate            whole weight, whole input
    gather_sequence      no weight: makes the module's first input whole, once for all projections inside
"""

from __future__ import annotations

from typing import Any

from ezpz.errors import UsageError

__all__ = ["HUGGING_FACE_NAMES", "LLAMA_NAMES", "STYLES", "check_divisible", "llama_plan", "make_style"]

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
)

# What a module does -> its name, or names, in a model. Copy and change one to describe a model with names of its own.
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
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
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
    if word in {"replicate", "gather_sequence"}:
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
        UsageError: One is no multiple of ``by``; it names the nearest that are, and the degrees that would fit.
    """
    for name, size in sizes.items():
        if size % by == 0 and size > 0:
            continue
        near = [str(multiple) for multiple in (size // by * by, (size // by + 1) * by) if multiple > 0]
        fits = [str(degree) for degree in range(1, by + 1) if size % degree == 0]
        raise UsageError(
            f"{name}={size} cannot be cut into tp={by} equal parts; expected {name}={' or '.join(near)}, "
            f"or tp={' or '.join(fits[-2:])}."
        )
