"""A mirror on this host that can be as bad as mirrors are, and data sets of a few bytes to fetch from it."""

import gzip
import io
import struct
import tarfile
import threading
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ezpz.train.data.download import DataSet, Remote

IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def idx(shape, values):
    """The bytes of an idx file."""
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(values)


def packed(data):
    return gzip.compress(data, mtime=0)


def tiny_mnist():
    """Six images to train with and two to test with, of 2 x 2 pixels: {file name: bytes}."""
    parts = (idx((6, 2, 2), range(24)), idx((6,), range(6)), idx((2, 2, 2), range(8)), idx((2,), (7, 8)))
    return {name: packed(data) for name, data in zip(IDX_NAMES, parts, strict=True)}


def cifar_records(count, label=lambda place: place % 10):
    """The bytes of CIFAR-10 records: image i is red i, green i + 1, blue i + 2 everywhere."""
    records = (bytes([label(i), *[i % 250] * 1024, *[i % 250 + 1] * 1024, *[i % 250 + 2] * 1024]) for i in range(count))
    return b"".join(records)


def cifar_archive(path, batches):
    """Write a CIFAR-10 archive of ``{member: bytes}``."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in batches.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def dataset(name, files, *mirrors):
    remotes = tuple(Remote(file, len(data), sha256(data).hexdigest()) for file, data in files.items())
    return DataSet(name, "a few bytes", mirrors, remotes)


class Mirror:
    """Serves ``files`` below ``/good/``, and badly below the names in `_Handler.do_GET`. `asked`: the requests."""

    def __init__(self, files):
        self.files, self.asked = files, []
        mirror = self

        class Handler(_Handler):
            served = mirror

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.over = threading.Event()

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()

    def url(self, kind):
        return f"http://127.0.0.1:{self.server.server_port}/{kind}/"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.served.asked.append(self.path)
        kind, name = self.path.split("/")[-2:]
        data = self.served.files.get(name)
        if kind == "absent" or data is None:
            self.send_error(404)
            return
        if kind == "silent":
            self.served.over.wait(30)
            return
        told = len(data) + (kind == "longer")
        self.send_response(200)
        if kind != "untold":
            self.send_header("Content-Length", str(told))
        self.send_header("Connection", "close")
        self.end_headers()
        if kind == "cut":
            self.wfile.write(data[: len(data) // 2])
        elif kind == "stuck":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.served.over.wait(30)
        elif kind == "other":
            self.wfile.write(bytes(len(data)))
        elif kind == "slow":
            for place in range(0, len(data), max(1, len(data) // 8)):
                self.wfile.write(data[place : place + max(1, len(data) // 8)])
                self.wfile.flush()
                time.sleep(0.1)
        elif kind == "untold":
            self.wfile.write(data + b"more")
        else:
            self.wfile.write(data)
        self.close_connection = True
