"""Controls Chromium through its DevTools protocol.

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
    """Returns the path of an installed Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """A page of a browser.

    Args:
        socket: web socket of its DevTools.
    """

    def __init__(self, socket):
        self.socket, self.numbers = socket, itertools.count()

    async def call(self, method, **parameters):
        """Calls a method of the protocol and returns its result."""
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
        """Evaluates an expression of JavaScript."""
        reply = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True
        )
        return reply["result"].get("value")

    async def until(self, expression):
        """Waits for at most a minute until an expression is true."""
        for _ in range(600):
            with contextlib.suppress(RuntimeError):  # the page is not loaded yet
                if await self.value(expression):
                    return
            await asyncio.sleep(0.1)
        raise TimeoutError(
            f"{expression}; {await self.value('document.body.innerText')}"
        )

    async def press(self, key, **parameters):
        """Presses a key.

        Args:
            key: str. Name of the key, such as `"Tab"`.
            **parameters: parameters of `Input.dispatchKeyEvent`.
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
                **parameters,
            )

    async def screenshot(self, file, width, height):
        """Writes a picture of the page at a size in pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        await asyncio.sleep(0.3)
        reply = await self.call("Page.captureScreenshot")
        with open(file, "wb") as output:
            output.write(base64.b64decode(reply["data"]))


@contextlib.asynccontextmanager
async def open_page(address):
    """Opens an address in a new browser."""
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
            host = line.split("ws://")[1].split("/")[0]
            async with aiohttp.ClientSession() as session:
                url = f"http://{host}/json"
                async with session.get(url) as response:
                    pages = await response.json()
                [target] = [item for item in pages if item["type"] == "page"]
                socket = target["webSocketDebuggerUrl"]
                async with session.ws_connect(socket, max_msg_size=0) as connection:
                    yield Page(connection)
        finally:
            process.kill()
            process.communicate()
