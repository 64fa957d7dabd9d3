"""The web page in a browser: by keyboard and at the size of a phone."""

import asyncio
import socket
import threading

import pytest

from tests.server import browser

pytestmark = pytest.mark.backend("torch")
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.skipif(not browser.chromium(), reason="no Chromium is installed")
def test_the_page_shows_translation_alternatives_and_attention(client, translator):
    uvicorn = pytest.importorskip("uvicorn")
    config = uvicorn.Config(client.app, port=free_port(), log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    text = "an old man"

    async def use_keyboard():
        async with browser.open_page(f"http://127.0.0.1:{config.port}/") as page:
            await page.until("document.activeElement.id === 'text'")
            await page.until("view.kind === 'translation'")
            await page.call("Input.insertText", text=text)
            await page.press("Enter", modifiers=2)  # with Ctrl
            await page.until("document.querySelectorAll('path').length > 3")
            first = await page.value("find('answer').textContent")
            buttons = "[...document.querySelectorAll('#alternatives button')]"
            alternatives = await page.value(f"{buttons}.map((b) => b.innerText)")
            for _ in range(3):  # past the button to the second alternative
                await page.press("Tab")
            await page.press("Enter")
            second = await page.value("find('answer').textContent")
            await page.press("Tab")
            await page.press("Tab")
            await page.press("Enter")
            cells = await page.value("document.querySelectorAll('tbody td').length")
            await page.press("Tab")
            await page.press("ArrowRight")
            cell_title = await page.value("document.activeElement.title")
            assert cell_title == await page.value("find('detail').textContent")
            assert cell_title.split(": ")[1] == await page.value(
                "view.answer.hypotheses[1].attention[0][1].toFixed(2)"
            )
            await page.call("Emulation.setDeviceMetricsOverride", **PHONE)
            page_width = await page.value("document.documentElement.scrollWidth")
            # An empty text clears the old translation.
            await page.value("find('text').value = ''; ask();")
            assert await page.value("find('more').hidden && !find('answer').innerText")
            return first, alternatives, second, cells, page_width

    try:
        first, alternatives, second, cells, page_width = asyncio.run(use_keyboard())
    finally:
        server.should_exit = True
        thread.join()
    expected = translator.translate(text, num_hypotheses=2, return_attention=True)
    assert [first, second] == [hypothesis.text for hypothesis in expected.hypotheses]
    for line, hypothesis in zip(alternatives, expected.hypotheses, strict=True):
        assert line.split() == f"{hypothesis.score:.2f} {hypothesis.text}".split()
    assert cells == expected.hypotheses[1].attention.size
    assert page_width <= PHONE["width"]  # no horizontal scrolling
