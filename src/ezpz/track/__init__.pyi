from ezpz.track.distribution import Histogram as Histogram, histogram as histogram
from ezpz.track.history import History as History
from ezpz.track.profiles.profile_spec import add_profile_option as add_profile_option
from ezpz.track.profiles.profiling import Profile as Profile, profile as profile
from ezpz.track.journal_reader import read_journal as read_journal
from ezpz.track.run_reader import open_run as open_run
from ezpz.track.tracker_protocol import Tracker as Tracker
from ezpz.view.trackers.shared_wandb import setup_wandb as setup_wandb, verify_wandb as verify_wandb
