from ezpz.compat.module_names import BIN_DIR as BIN_DIR, CONF_DIR as CONF_DIR, GETJOBENV as GETJOBENV, HERE as HERE
from ezpz.compat.module_names import LOGS_DIR as LOGS_DIR, OUTPUTS_DIR as OUTPUTS_DIR, PROJECT_DIR as PROJECT_DIR
from ezpz.compat.module_names import PROJECT_ROOT as PROJECT_ROOT, PathLike as PathLike, SAVEJOBENV as SAVEJOBENV
from ezpz.compat.module_names import ScalarLike as ScalarLike, TrainArgs as TrainArgs, TrainConfig as TrainConfig
from ezpz.compat.module_names import UTILS as UTILS, ViTConfig as ViTConfig, WORKING_DIR as WORKING_DIR
from ezpz.compat.module_names import cmd_exists as cmd_exists, command_exists as command_exists
from ezpz.compat.module_names import git_ds_info as git_ds_info, print_config as print_config
from ezpz.compat.module_names import timmViTConfig as timmViTConfig
from ezpz.dist import get_scheduler as get_scheduler, load_ds_config as load_ds_config
