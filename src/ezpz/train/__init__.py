"""The small core under the trainers. Nothing here loads torch until a function needs it."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.cli_parser import non_negative_float as non_negative_float
    from ezpz.cli_parser import non_negative_int as non_negative_int
    from ezpz.cli_parser import positive_float as positive_float
    from ezpz.cli_parser import positive_int as positive_int
    from ezpz.train.data.baselines import text_baselines as text_baselines
    from ezpz.train.data.download import data_folder as data_folder
    from ezpz.train.data.download import fetch as fetch
    from ezpz.train.data.feeding import BatchIndices as BatchIndices
    from ezpz.train.data.feeding import ImageBatches as ImageBatches
    from ezpz.train.data.feeding import TokenBatches as TokenBatches
    from ezpz.train.data.feeding import shard_indices as shard_indices
    from ezpz.train.data.images import Images as Images
    from ezpz.train.data.images import load_digits as load_digits
    from ezpz.train.data.images import load_images as load_images
    from ezpz.train.data.synthetic import SyntheticImages as SyntheticImages
    from ezpz.train.data.tokenizers import Tokenizer as Tokenizer
    from ezpz.train.data.tokenizers import load_tokenizer as load_tokenizer
    from ezpz.train.data.tokens import Tokens as Tokens
    from ezpz.train.data.tokens import load_tokens as load_tokens
    from ezpz.train.evaluation import evaluate as evaluate
    from ezpz.train.flops import Cost as Cost
    from ezpz.train.flops import count_flops as count_flops
    from ezpz.train.flops import mfu as mfu
    from ezpz.train.flops import parameters_for_flops as parameters_for_flops
    from ezpz.train.flops import transformer_flops as transformer_flops
    from ezpz.train.loop import Loop as Loop
    from ezpz.train.loop import Outcome as Outcome
    from ezpz.train.options import DTYPES as DTYPES
    from ezpz.train.options import Parser as Parser
    from ezpz.train.options import make_parser as make_parser
    from ezpz.train.options import parse as parse
    from ezpz.train.options import rank_batch_size as rank_batch_size
    from ezpz.train.running import checkpoint_options as checkpoint_options
    from ezpz.train.running import finish_run as finish_run
    from ezpz.train.running import log_setup as log_setup
    from ezpz.train.running import loop_options as loop_options
    from ezpz.train.running import print_timing as print_timing
    from ezpz.train.running import run_main as run_main
    from ezpz.train.running import schedule_options as schedule_options
    from ezpz.train.sampling import sample_tokens as sample_tokens
    from ezpz.train.schedule import make_schedule as make_schedule
    from ezpz.train.settings import as_dict as as_dict
    from ezpz.train.settings import as_toml as as_toml
    from ezpz.train.settings import make_settings_parser as make_settings_parser
    from ezpz.train.settings import setting as setting
    from ezpz.train.summary import summarize as summarize

_HOME_OF = {
    "BatchIndices": "ezpz.train.data.feeding",
    "Cost": "ezpz.train.flops",
    "DTYPES": "ezpz.train.options",
    "ImageBatches": "ezpz.train.data.feeding",
    "Images": "ezpz.train.data.images",
    "Loop": "ezpz.train.loop",
    "Outcome": "ezpz.train.loop",
    "Parser": "ezpz.train.options",
    "SyntheticImages": "ezpz.train.data.synthetic",
    "TokenBatches": "ezpz.train.data.feeding",
    "Tokenizer": "ezpz.train.data.tokenizers",
    "Tokens": "ezpz.train.data.tokens",
    "as_dict": "ezpz.train.settings",
    "as_toml": "ezpz.train.settings",
    "checkpoint_options": "ezpz.train.running",
    "count_flops": "ezpz.train.flops",
    "data_folder": "ezpz.train.data.download",
    "evaluate": "ezpz.train.evaluation",
    "fetch": "ezpz.train.data.download",
    "finish_run": "ezpz.train.running",
    "load_digits": "ezpz.train.data.images",
    "load_images": "ezpz.train.data.images",
    "load_tokenizer": "ezpz.train.data.tokenizers",
    "load_tokens": "ezpz.train.data.tokens",
    "log_setup": "ezpz.train.running",
    "loop_options": "ezpz.train.running",
    "make_parser": "ezpz.train.options",
    "make_schedule": "ezpz.train.schedule",
    "make_settings_parser": "ezpz.train.settings",
    "mfu": "ezpz.train.flops",
    "non_negative_float": "ezpz.cli_parser",
    "non_negative_int": "ezpz.cli_parser",
    "parameters_for_flops": "ezpz.train.flops",
    "parse": "ezpz.train.options",
    "positive_float": "ezpz.cli_parser",
    "positive_int": "ezpz.cli_parser",
    "print_timing": "ezpz.train.running",
    "rank_batch_size": "ezpz.train.options",
    "run_main": "ezpz.train.running",
    "sample_tokens": "ezpz.train.sampling",
    "schedule_options": "ezpz.train.running",
    "setting": "ezpz.train.settings",
    "shard_indices": "ezpz.train.data.feeding",
    "summarize": "ezpz.train.summary",
    "text_baselines": "ezpz.train.data.baselines",
    "transformer_flops": "ezpz.train.flops",
}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  # a list at run time; editors read the block above


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'ezpz.train' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
