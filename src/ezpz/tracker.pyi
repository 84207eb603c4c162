from ezpz.view.trackers.own_backends import TrackerBackend as TrackerBackend, register_backend as register_backend
