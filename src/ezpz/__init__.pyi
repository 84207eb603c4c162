from ezpz import checkpoint as checkpoint, cluster as cluster, configs as configs, dist as dist
from ezpz import distributed as distributed, errors as errors, examples as examples, flops as flops, history as history
from ezpz import launch as launch, log as log, models as models, proc as proc, progress as progress, ranks as ranks
from ezpz import tp as tp, track as track, tracker as tracker, train as train, utils as utils
from ezpz.cluster import Allocation as Allocation, detect as detect
from ezpz.dist import *
from ezpz.dist.device import device as device
from ezpz.errors import EzpzError as EzpzError
from ezpz.profile import profile as profile
from ezpz.progress import heartbeat as heartbeat, section as section
from ezpz.save_requests import on_save as on_save
from ezpz.track import History as History, add_profile_option as add_profile_option, histogram as histogram
from ezpz.train.preparing import prepare as prepare

__version__: str
