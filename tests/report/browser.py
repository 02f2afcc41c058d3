"""A headless Chromium, spoken to over its DevTools protocol."""

import json
import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest


def chromium():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        pytest.skip("needs Chromium to open the page in")
    return found


class Tab:
    """The one page of the browser, and what it complained of."""

    def __init__(self, socket):
        self.socket, self.number, self.errors, self.events = socket, 0, [], []
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            said = self._next()
            if said.get("id") == self.number:
                assert "error" not in said, said
                return said["result"]

    def _next(self):
        said = json.loads(self.socket.recv(timeout=60))
        kind, params = said.get("method"), said.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"])
        elif kind == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"])
        elif kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(params["args"])
        return said

    def open(self, address, width=1200, height=900):
        self.errors.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.ask("Page.navigate", url=address)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def js(self, expression):
        said = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not self.js(condition):
            assert time.monotonic() < end, f"{condition} never came true; {self.errors}"
            time.sleep(0.05)

    def drag(self, start, end):
        for kind, (x, y), buttons in (("mousePressed", start, 1), ("mouseMoved", end, 1), ("mouseReleased", end, 0)):
            button = "left" if kind != "mouseMoved" else "none"
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=1)

    def press(self, key):
        codes = {"Enter": (13, "\r")}
        code, text = codes[key]
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **about)


@contextmanager
def a_tab(folder):
    from websockets.sync.client import connect

    command = [
        chromium(),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-dev-shm-usage",
    ]
    command += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file, end = folder / "DevToolsActivePort", time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text().count("\n")):
            assert process.poll() is None, "Chromium does not start"
            assert time.monotonic() < end, "Chromium does not answer"
            time.sleep(0.05)
        port = port_file.read_text().split("\n")[0]
        from urllib.request import urlopen

        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=60) as answer:
            target = next(tab for tab in json.load(answer) if tab["type"] == "page")
        with connect(target["webSocketDebuggerUrl"], max_size=None, open_timeout=60) as socket:
            yield Tab(socket)
    finally:
        process.terminate()
        process.wait(timeout=30)
