from ezpz.track.trackers.own_backends import TrackerBackend as TrackerBackend, register_backend as register_backend
