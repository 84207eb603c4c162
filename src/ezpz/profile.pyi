from ezpz.compat.module_names import PyInstrumentProfiler as PyInstrumentProfiler
from ezpz.compat.module_names import get_context_manager as get_context_manager
from ezpz.compat.module_names import get_profiling_context as get_profiling_context
from ezpz.compat.module_names import get_pytorch_profiler as get_pytorch_profiler
from ezpz.compat.module_names import get_torch_profiler as get_torch_profiler
from ezpz.track import Profile as Profile, add_profile_option as add_profile_option, profile as profile
