"""The small core under the trainers. Nothing here loads torch until a function needs it."""

from __future__ import annotations

from ezpz._lazy import attach

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    # names: begin (`make names`)
    from ezpz.cli_parser import non_negative_float as non_negative_float
    from ezpz.cli_parser import non_negative_int as non_negative_int
    from ezpz.cli_parser import positive_float as positive_float
    from ezpz.cli_parser import positive_int as positive_int
    from ezpz.train.data.baselines import text_baselines as text_baselines
    from ezpz.train.data.download import data_folder as data_folder
    from ezpz.train.data.download import fetch as fetch
    from ezpz.train.data.feeding import BatchIndices as BatchIndices
    from ezpz.train.data.feeding import ImageBatches as ImageBatches
    from ezpz.train.data.feeding import PickedBatches as PickedBatches
    from ezpz.train.data.feeding import TokenBatches as TokenBatches
    from ezpz.train.data.feeding import shard_indices as shard_indices
    from ezpz.train.data.image_folder import ImageFolder as ImageFolder
    from ezpz.train.data.image_folder import image_data as image_data
    from ezpz.train.data.image_folder import image_folder_name as image_folder_name
    from ezpz.train.data.images import Images as Images
    from ezpz.train.data.images import load_digits as load_digits
    from ezpz.train.data.images import load_images as load_images
    from ezpz.train.data.prepare import Loader as Loader
    from ezpz.train.data.prepare import prepare as prepare
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
    from ezpz.train.losses import compile_loss as compile_loss
    from ezpz.train.losses import next_token_loss as next_token_loss
    from ezpz.train.options import DTYPES as DTYPES
    from ezpz.train.options import Parser as Parser
    from ezpz.train.options import make_parser as make_parser
    from ezpz.train.options import parse as parse
    from ezpz.train.options import rank_batch_size as rank_batch_size
    from ezpz.train.running import checkpoint_options as checkpoint_options
    from ezpz.train.running import finish_run as finish_run
    from ezpz.train.running import log_setup as log_setup
    from ezpz.train.running import loop_options as loop_options
    from ezpz.train.running import run_main as run_main
    from ezpz.train.running import schedule_options as schedule_options
    from ezpz.train.sampling import sample_tokens as sample_tokens
    from ezpz.train.schedule import make_schedule as make_schedule
    from ezpz.train.settings import as_dict as as_dict
    from ezpz.train.settings import as_toml as as_toml
    from ezpz.train.settings import make_settings_parser as make_settings_parser
    from ezpz.train.settings import setting as setting
    from ezpz.train.summary import summarize as summarize
    # names: end

__getattr__, __dir__ = attach(
    __name__,
    {
        "data.baselines": "text_baselines",
        "data.download": "data_folder fetch",
        "data.feeding": "BatchIndices ImageBatches PickedBatches TokenBatches shard_indices",
        "data.image_folder": "ImageFolder image_data image_folder_name",
        "data.images": "Images load_digits load_images",
        "data.prepare": "Loader prepare",
        "data.synthetic": "SyntheticImages",
        "data.tokenizers": "Tokenizer load_tokenizer",
        "data.tokens": "Tokens load_tokens",
        "evaluation": "evaluate",
        "ezpz.cli_parser": "non_negative_float non_negative_int positive_float positive_int",
        "flops": "Cost count_flops mfu parameters_for_flops transformer_flops",
        "loop": "Loop Outcome",
        "losses": "compile_loss next_token_loss",
        "options": "DTYPES Parser make_parser parse rank_batch_size",
        "running": "checkpoint_options finish_run log_setup loop_options run_main schedule_options",
        "sampling": "sample_tokens",
        "schedule": "make_schedule",
        "settings": "as_dict as_toml make_settings_parser setting",
        "summary": "summarize",
    },
)
