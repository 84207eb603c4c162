from ezpz.compat.dist_names import get_max_memory_allocated as get_max_memory_allocated
from ezpz.compat.dist_names import get_max_memory_reserved as get_max_memory_reserved, get_timestamp as get_timestamp
from ezpz.compat.dist_names import summarize_dict as summarize_dict
from ezpz.compat.module_names import Color as Color, NoColor as NoColor, dataset_from_h5pyfile as dataset_from_h5pyfile
from ezpz.compat.module_names import dict_from_h5pyfile as dict_from_h5pyfile, format_pair as format_pair
from ezpz.compat.module_names import get_bf16_config_json as get_bf16_config_json
from ezpz.compat.module_names import get_current_memory_allocated as get_current_memory_allocated
from ezpz.compat.module_names import get_current_memory_reserved as get_current_memory_reserved
from ezpz.compat.module_names import get_flops_profiler_config_json as get_flops_profiler_config_json
from ezpz.compat.module_names import get_fp16_config_json as get_fp16_config_json
from ezpz.compat.module_names import get_memory_metrics as get_memory_metrics, get_peak_flops as get_peak_flops
from ezpz.compat.module_names import model_summary as model_summary, normalize as normalize
from ezpz.compat.module_names import reset_peak_memory_stats as reset_peak_memory_stats
from ezpz.dist import breakpoint as breakpoint
from ezpz.track.older_calls import dataset_to_h5pyfile as dataset_to_h5pyfile, grab_tensor as grab_tensor
from ezpz.track.older_calls import save_dataset as save_dataset
