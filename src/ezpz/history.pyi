from ezpz.compat.dist_names import get_timestamp as get_timestamp, summarize_dict as summarize_dict
from ezpz.compat.module_names import StopWatch as StopWatch, WANDB_DISABLED as WANDB_DISABLED
from ezpz.compat.module_names import format_pair as format_pair
from ezpz.track import History as History
from ezpz.track.older_calls import grab_tensor as grab_tensor
