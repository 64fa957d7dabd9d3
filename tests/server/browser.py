"""Chromium, asked through its DevTools protocol.

https://chromedevtools.github.io/devtools-protocol
"""

import asyncio
import base64
import contextlib
import itertools
import shutil
import subprocess
import tempfile

import aiohttp


def chromium():
    """Gives the path of a Chromium that is installed, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """A page of a browser.

    Args:
        socket: web socket of its DevTools.
    """

    def __init__(self, socket):
        self.socket, self.numbers = socket, itertools.count()

    async def call(self, method, **parameters):
        """Calls a method of the protocol, and gives its result."""
        number = next(self.numbers)
        await self.socket.send_json(
            {"id": number, "method": method, "params": parameters}
        )
        while True:
            message = await self.socket.receive_json(timeout=60)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(message["error"]["message"])
                return message["result"]

    async def value(self, expression):
        """Gives the value of an expression of JavaScript."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True
        )
        return found["result"].get("value")

    async def until(self, expression):
        """Waits until an expression is true, a minute at most."""
        for _ in range(600):
            with contextlib.suppress(RuntimeError):  # it is not loaded yet
                if await self.value(expression):
                    return
            await asyncio.sleep(0.1)
        raise TimeoutError(
            f"{expression}; {await self.value('document.body.innerText')}"
        )

    async def press(self, key, **more):
        """Presses a key.

        Args:
            key: str, its name, such as `"Tab"`.
            **more: of `Input.dispatchKeyEvent`.
        """
        code = {"Tab": 9, "Enter": 13, "ArrowRight": 39}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
                **more,
            )

    async def picture(self, file, width, height):
        """Writes a picture of the page at a size, in pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        await asyncio.sleep(0.3)
        found = await self.call("Page.captureScreenshot")
        with open(file, "wb") as output:
            output.write(base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def opened(address):
    """Opens an address in a browser of its own."""
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(
            [
                chromium(),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                address,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for line in process.stderr:
                if "DevTools listening on ws://" in line:
                    break
            place = line.split("ws://")[1].split("/")[0]
            async with aiohttp.ClientSession() as session:
                url = f"http://{place}/json"
                async with session.get(url) as actual:
                    pages = await actual.json()
                [page] = [one for one in pages if one["type"] == "page"]
                socket = page["webSocketDebuggerUrl"]
                async with session.ws_connect(socket, max_msg_size=0) as connected:
                    yield Page(connected)
        finally:
            process.kill()
            process.communicate()
