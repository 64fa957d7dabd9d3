"""The web page in a browser: by keyboard and at the size of a phone."""

import asyncio
import socket
import threading

import pytest

from keras_tfm.server.access import Access
from keras_tfm.server.limits import Limits
from tests.server import browser
from tests.server.conftest import DESCRIPTION

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
    text = "a small boat"

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
            for _ in range(4):  # past two buttons to the second alternative
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
            await page.call(
                "Browser.grantPermissions", permissions=["clipboardReadWrite"]
            )
            await page.value("find('copy').click()")
            await page.until("find('copy').textContent === 'Copied'")
            await page.call("Emulation.setDeviceMetricsOverride", **PHONE)
            await page.call("Emulation.setTouchEmulationEnabled", enabled=True)
            keys = "[...document.querySelectorAll('.keys')]"
            is_visible = f"{keys}.some((x) => getComputedStyle(x).display !== 'none')"
            assert not await page.value(is_visible)  # a phone has no keys
            for button in ("as-lines", "as-map"):  # nothing is clipped
                await page.value(f"find('{button}').click()")
                place = "find('attention')"
                clipped = f"{place}.scrollWidth > {place}.clientWidth"
                assert not await page.value(clipped), button
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


@pytest.mark.skipif(not browser.chromium(), reason="no Chromium is installed")
def test_the_page_switches_between_models_and_sends_the_key():
    uvicorn = pytest.importorskip("uvicorn")
    from keras_tfm.server.app import make_apps

    models = {
        "en-de": Fixed(["en", "de"], ["It knows no science."], "eins"),
        "en-fr": Fixed(["en", "fr"], [], "deux"),
    }
    limits = Limits(access=Access(api_key="abc"))
    app = make_apps(models, limits)
    config = uvicorn.Config(app, port=free_port(), log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()

    async def switch():
        async with browser.open_page(f"http://127.0.0.1:{config.port}/en-fr/") as page:
            await page.until("view.kind === 'translation'")
            titles = await page.value("[...find('models').options].map((x) => x.text)")
            assert titles == ["English \u2192 German (en-de)"] + [
                "English \u2192 French (en-fr)"
            ]
            assert await page.value("find('models').selectedIndex") == 1
            assert await page.value("find('weak').hidden")
            await page.call("Input.insertText", text="two")
            await page.press("Enter", modifiers=2)
            await page.until("find('state').textContent.includes('needs an API key')")
            await page.value("find('key').value = 'abc'; ask();")
            await page.until("find('answer').textContent === 'deux'")
            models = "find('models')"
            await page.value(f"{models}.selectedIndex = 0; {models}.onchange()")
            await page.until("find('answer').textContent === 'eins'")
            weaknesses = await page.value("find('weaknesses').textContent")
            assert weaknesses == "It knows no science."
            address = f"http://127.0.0.1:{config.port}/en-de/docs"
            await page.call("Page.navigate", url=address)
            await page.until("document.querySelectorAll('section').length > 5")
            described = await page.value("document.body.innerText")
            assert "POST /translate/stream" in described
            assert "num_hypotheses" in described and "alternatives" in described

    try:
        asyncio.run(switch())
    finally:
        server.should_exit = True
        thread.join()


class Fixed:
    """A model that always gives the same translation."""

    def __init__(self, languages, weaknesses, translation):
        self.translation = translation
        changes = {"attention": False, "streams": False, "hypotheses": 1}
        languages = {"languages": languages, "weaknesses": weaknesses}
        self.description = {**DESCRIPTION, **changes, **languages}

    async def describe(self):
        return self.description

    async def answer(self, job):
        hypothesis = {"text": self.translation, "score": 0.0, "truncated": False}
        hypothesis |= {"number_mismatch": False, "tokens": [], "attention": None}
        return [{"source_tokens": [], "hypotheses": [hypothesis]} for _ in job.texts]
