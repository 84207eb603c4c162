"""Attack a control port without the secret: python attack.py HOST PORT [NAME…], as any user and from any host.

The names are those of abstract sockets to attack as well; without any, all of ezpz in this network namespace are.

Standard library alone. Each attack ends by itself; what it prints is what the launcher let it see.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time

GREETING = b"ezpz-agent-1 reports 00000001 " + b"0" * 32 + b" " + b"0" * 64 + b"\n"
WORDS = {
    "a list where a word belongs": b'{"say":[]}\n',
    "a mac that is no ASCII": (b'{"say": "hello", "host": "n01", "index": 0, "nonce": "00", "mac": "\xc3\xa9"}\n'),
    "3,900 times [": b"[" * 3900 + b"\n",
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "zeros": bytes(100_000),
    "a greeting with a wrong proof": GREETING,
    "a greeting of another edition": GREETING.replace(b"agent-1", b"agent-2"),
    "a greeting for the output": GREETING.replace(b"reports", b"outputs"),
    "a greeting with a proof that is no ASCII": GREETING[:-9] + b"\xff" * 8 + b"\n",
    "a greeting with more after it": GREETING + b"\0\0\0\5" + bytes(100),
    "a greeting cut short": GREETING[:-1],
    "frames without a greeting": b"\0\0\0\2" + bytes(16) + b"{}",
    "the longest frame": b"\xff\xff\xff\xff" + bytes(16),
    "nothing": b"",
}


def call(address):
    return socket.create_connection(address, timeout=120)


def say(address, words):
    """Send some words, and wait until the launcher hangs up."""
    with call(address) as stranger:
        try:
            stranger.sendall(words)
            if words != GREETING[:-1]:
                stranger.shutdown(socket.SHUT_WR)
            return read_all(stranger)
        except OSError:  # it has hung up already
            return b""


def read_all(stranger):
    came = b""
    while more := stranger.recv(65536):
        came += more
    return came


def replay(address):
    """Send the launcher's own challenge back, and the one of another connection."""
    with call(address) as one, call(address) as other:
        first, second = one.recv(4096), other.recv(4096)
        one.sendall(second + first * 10)
        try:
            read_all(one)
        except ConnectionError:
            pass


def flood(address, count=3000):
    """Open as many connections as there may be, and say nothing on any of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 100), hard), hard))
    kept = []
    try:
        kept.extend(call(address) for _ in range(count))
    except OSError:
        pass
    time.sleep(1)
    for stranger in kept:
        stranger.close()


def drip(address, seconds=8.0):
    """Send a right beginning, a byte at a time, for longer than the launcher allows."""
    with call(address) as stranger:
        began = time.monotonic()
        try:
            for byte in GREETING:
                stranger.sendall(bytes([byte]))
                time.sleep(0.1)
                if time.monotonic() - began > seconds:
                    return
        except ConnectionError:
            return


def hang(address, count=40):
    """Connect, and reset each connection at once."""
    for _ in range(count):
        stranger = call(address)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        stranger.close()


REFUSED = b'{"refused": "this launch is another user\'s"}\n'  # what a launch says at the socket where it is asked


def local_sockets(named):
    """Say what a shim and a rank would say on some abstract sockets, or on all of ezpz in this network namespace."""
    names = set(named)
    if not names:
        with open("/proc/net/unix", encoding="utf-8") as table:  # noqa: PTH123  # as plain as the rest
            names = {line.split()[-1] for line in table if line.split()[-1].startswith("@ezpz-")}
    for name in sorted(names):
        for words in (b"shim 0 2 0 2 0 openmpi 1 1.5\nended 3\n", b"rank 0 1\nbeat\n", b"stacks\n", b"\xff" * 100_000):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.settimeout(60)  # one that answers nothing, not even by hanging up, is a failure
                stranger.connect("\0" + name[1:])
                try:
                    stranger.sendall(words)
                    came = read_all(stranger)
                except ConnectionError:
                    came = b""
                assert came in {b"", REFUSED}, (name, came)
    return names


def main():
    address = (sys.argv[1], int(sys.argv[2]))
    for name, words in WORDS.items():
        began = time.monotonic()
        came = say(address, words)
        assert time.monotonic() - began < 100, name
        assert len(came) < 100, (name, came)
    replay(address)
    hang(address)
    flood(address)
    drip(address)
    call(address).close()
    print(f"attacked as user {os.getuid()}, and {len(local_sockets(sys.argv[3:]))} local sockets")


if __name__ == "__main__":
    main()
