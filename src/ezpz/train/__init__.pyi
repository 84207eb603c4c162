from ezpz.cli_parser import non_negative_float as non_negative_float, non_negative_int as non_negative_int
from ezpz.cli_parser import positive_float as positive_float, positive_int as positive_int
from ezpz.train.data.catalog import fetch as fetch
from ezpz.train.data.feeding import BatchIndices as BatchIndices, ImageBatches as ImageBatches
from ezpz.train.data.feeding import PickedBatches as PickedBatches, TokenBatches as TokenBatches
from ezpz.train.data.feeding import shard_indices as shard_indices
from ezpz.train.data.image_folder import ImageFolder as ImageFolder, image_data as image_data
from ezpz.train.data.image_folder import image_folder_name as image_folder_name
from ezpz.train.data.images import Images as Images, load_digits as load_digits, load_images as load_images
from ezpz.train.data.prepare import Loader as Loader, prepare as prepare
from ezpz.train.data.shared_files import data_folder as data_folder
from ezpz.train.data.synthetic import SyntheticImages as SyntheticImages
from ezpz.train.data.tokenizers import Tokenizer as Tokenizer, load_tokenizer as load_tokenizer
from ezpz.train.data.tokens import Tokens as Tokens, load_tokens as load_tokens
from ezpz.train.evaluation import evaluate as evaluate
from ezpz.train.flops import Cost as Cost, count_flops as count_flops, mfu as mfu
from ezpz.train.flops import parameters_for_flops as parameters_for_flops, transformer_flops as transformer_flops
from ezpz.train.loop import Loop as Loop, Outcome as Outcome
from ezpz.train.losses import compile_loss as compile_loss, next_token_loss as next_token_loss
from ezpz.train.trainer_options import DTYPES as DTYPES, Parser as Parser, make_parser as make_parser, parse as parse
from ezpz.train.trainer_options import rank_batch_size as rank_batch_size
from ezpz.train.moving_average import EMA as EMA
from ezpz.train.run_trainer import checkpoint_options as checkpoint_options, finish_run as finish_run
from ezpz.train.run_trainer import log_setup as log_setup, loop_options as loop_options, run_main as run_main
from ezpz.train.run_trainer import schedule_options as schedule_options
from ezpz.train.sampling import sample_tokens as sample_tokens
from ezpz.train.schedule import make_schedule as make_schedule
from ezpz.train.settings import as_dict as as_dict, as_toml as as_toml, make_settings_parser as make_settings_parser
from ezpz.train.settings import setting as setting
from ezpz.train.layer_tree import summarize as summarize
