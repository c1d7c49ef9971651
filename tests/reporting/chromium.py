"""Chromium without a window, driven over its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """The browser, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab, with the messages of its console."""

    def __init__(self, folder: Path) -> None:
        binary = find_chromium()
        if binary is None:
            pytest.skip(f"none of {', '.join(NAMES)} is here; type apt-get install chromium")
        to_read, self.to_write = os.pipe()
        self.from_read, from_write = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
        command = f'exec "$0" {flags} --user-data-dir="$1" about:blank 3<&{to_read} 4>&{from_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, binary, folder / "profile"],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        self.console: list[dict[str, Any]] = []
        self.events: list[str] = []
        self.number, self.buffer, self.session = 0, b"", ""
        tab = next(target for target in self("Target.getTargets")["targetInfos"] if target["type"] == "page")
        self.session = self("Target.attachToTarget", targetId=tab["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; returns its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        while (reply := self._next()).get("id") != self.number:
            pass
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            read = os.read(self.from_read, 1 << 20)
            assert read, "chromium has ended"
            self.buffer += read
        line, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(line)
        self.events.append(message.get("method", ""))
        if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.console.append(message["params"])
        return message

    def open(self, path: Path, width: int, scheme: str) -> None:
        """Load a file at a width, in `light` or `dark`."""
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.events.clear()
        self("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self._next()

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return self("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def shoot(self, path: Path) -> None:
        """Save the whole page as a picture."""
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def close(self) -> None:
        """End the browser."""
        os.close(self.to_write)
        self.process.terminate()
        self.process.wait(20)
        os.close(self.from_read)
