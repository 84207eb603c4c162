"""Supervise one launch: start its programs, follow its hosts, end it, and name the cause."""
