"""A headless Chromium without a network, spoken to over its DevTools pipe (Chrome DevTools Protocol 1.3).

With ``--remote-debugging-pipe`` the browser reads commands from descriptor 3 and writes answers and events to
descriptor 4, each as JSON that ends with a NUL:

    {"id":1,"sessionId":"9B…","method":"Runtime.evaluate","params":{"expression":"1+1","returnByValue":true}}
    {"id":1,"sessionId":"9B…","result":{"result":{"type":"number","value":2}}}
    {"method":"Runtime.exceptionThrown","sessionId":"9B…","params":{"exceptionDetails":{…}}}
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

from lab.process import kill_group, minimal_env
from lab.require import require

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def find():
    """The browser's path; without one the test is skipped, or fails when ``EZPZ_REQUIRE`` names ``browser``."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    require("browser", None if path else f"none of {', '.join(NAMES)} on PATH")
    return path


def _far(descriptors):
    far = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 20) for each in descriptors]
    for each in descriptors:
        os.close(each)
    return far


class Browser:
    """One browser with one page. `complaints` and `requests` collect what the page said and asked for since `open`."""

    def __init__(self, home, tag, timeout=60.0):
        self.timeout = timeout
        self.complaints, self.requests = [], []
        self._loaded = False
        self._buffer = b""
        self._count = 0
        # Far from 3 and 4, so that putting one in its place does not close the other.
        (its_in, self._write), (self._read, its_out) = _far(os.pipe()), _far(os.pipe())
        home = Path(home)
        home.mkdir(parents=True, exist_ok=True)
        arguments = [find(), *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={home / 'profile'}", "about:blank"]
        self.process = subprocess.Popen(
            # A shell puts our two descriptors in their places; nothing of Python runs between fork and exec.
            ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out} {its_in}<&- {its_out}>&-', "bash", *arguments],
            pass_fds=(its_in, its_out),
            env=minimal_env(home, tag),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(its_in)
        os.close(its_out)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(Exception):
            self._session = None
            self.call("Browser.close")
            self.process.wait(10)
        kill_group(self.process)
        for descriptor in (self._read, self._write):
            os.close(descriptor)

    def call(self, method, **params):
        """Send a command and return its result; events that come before it are noted."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        number, end = self._count, time.monotonic() + self.timeout
        while True:
            answer = self._next(end, method)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self, end, what):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            assert data, f"{what}: the browser {'has ended' if ready else f'said nothing for {self.timeout} s'}"
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(raw)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method, params):
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{params['type']}: {params['args']}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{params['entry']['level']}: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path, *, dark=False, scripts=True, size=(1300, 900)):
        """Load a file and wait for it; colours by `dark`, scripts on or off."""
        self.show(dark=dark, size=size)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.complaints.clear()
        self.requests.clear()
        self._loaded = False
        self.call("Page.navigate", url=Path(path).absolute().as_uri())
        end = time.monotonic() + self.timeout
        while not self._loaded:
            self._next(end, "load")

    def show(self, *, dark, size):
        """Give the window another size or other colours; the page stays loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False
        )

    def ask(self, expression):
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def hover(self, selector, x=0.5, y=0.5):
        """Move the real mouse to a place inside an element, in shares of its width and height."""
        box = self.ask(
            f"(() => {{const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]})()"
        )
        place = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        return place

    def click(self, selector):
        place = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path, *, whole=True):
        """Save what is seen, or the whole page, as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(data))
