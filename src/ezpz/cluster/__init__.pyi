from ezpz.cluster.allocation import Allocation as Allocation
from ezpz.cluster.devices import Devices as Devices, count_devices as count_devices
from ezpz.cluster.hostlist import expand as expand
from ezpz.cluster.site import Site as Site, recognise as recognise
from ezpz.cluster.usable_hosts import detect as detect

SCHEDULERS: tuple[str, ...]
