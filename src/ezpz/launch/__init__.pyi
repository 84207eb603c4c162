from ezpz.launch.entry import main as main
from ezpz.launch.placement import Placement as Placement
from ezpz.launch.plan import LaunchPlan as LaunchPlan
