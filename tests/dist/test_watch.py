"""Who is told of a failure: the hub and its connections, without torch."""

import socket

from ezpz.dist import failure_watch


class Store(dict):
    """As much of torch's store as the watch uses."""

    def set(self, key, value):
        self[key] = value.encode()


def connected(store, words=None):
    port, secret = store["watch"].decode().split()
    connection = socket.create_connection(("localhost", int(port)), timeout=10)
    connection.sendall(f"{words or secret}\n".encode())
    return connection


def hub():
    """Return the store of a hub as rank 0 starts it; `join`, which starts it, needs a group of torch."""
    store = Store()
    listener = failure_watch._listen_everywhere()
    failure_watch._Hub(listener, "s3cret")
    store.set("watch", f"{listener.getsockname()[1]} s3cret")
    return store


def test_everybody_is_told_of_the_first_failure_also_who_connects_later():
    store = hub()
    early, failing = connected(store), connected(store)
    failing.sendall(b"failed 1 3 ValueError: no\n")
    told = early.makefile().readline()
    assert told == "failed 1 3 ValueError: no\n"
    early.sendall(b"failed 0 1 RuntimeError: its consequence\n")
    late = connected(store)
    assert late.makefile().readline() == told


def test_secret_and_failure_may_come_in_one_packet_before_anybody_else():
    store = hub()
    connected(store, "s3cret\nfailed 2 1 gone")
    assert connected(store).makefile().readline() == "failed 2 1 gone\n"


def test_a_stranger_is_neither_heard_nor_told():
    store = hub()
    stranger = connected(store, "guess\nfailed 0 1 all")
    assert stranger.recv(100) == b""
    member, failing = connected(store), connected(store)
    failing.sendall(b"failed 1 1 true\n")
    assert member.makefile().readline() == "failed 1 1 true\n"
