from ezpz.compat.module_names import compute_mfu as compute_mfu, estimate_model_flops as estimate_model_flops
from ezpz.compat.module_names import estimate_model_flops_fake as estimate_model_flops_fake
from ezpz.compat.module_names import get_device_name as get_device_name, get_peak_flops as get_peak_flops
from ezpz.compat.module_names import try_estimate as try_estimate, try_estimate_fake as try_estimate_fake
