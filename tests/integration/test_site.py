"""The documentation site: it builds without a warning, and needs nothing but its own files."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, TimeoutError

from emq.runtime import errors, settings
from emq_cli.commands import app as commands
from emq_scheduling import Limit, Pool, Resource, TaskType
from emq_web import application
from support.python_path import python_path

ROOT = Path(__file__).parents[2]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": python_path(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "-f", str(config), "-d", str(site)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    directory = tmp_path_factory.mktemp("site")
    ended = build(ROOT / "mkdocs.yml", directory)
    assert ended.returncode == 0, ended.stderr
    return directory


def mistaken(directory: Path, text: str) -> str:
    """What the build says of a site with a page of this text; it must refuse the site."""
    (directory / "docs").mkdir()
    (directory / "docs/index.md").write_text(text)
    config = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    config = config.replace("scripts/site/", f"{ROOT}/scripts/site/").replace("paths: [.]", f"paths: [{ROOT}]")
    (directory / "mkdocs.yml").write_text(config.replace("docs_dir: docs", f"docs_dir: {directory}/docs"))
    ended = build(directory / "mkdocs.yml", directory / "site")
    assert ended.returncode != 0, "the build does not notice"
    return ended.stderr


@pytest.mark.xdist_group("site")
def test_pages_load_nothing_from_the_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=\"?(https?://[^\s\">]+)", page.read_text())
        assert not loaded, f"{page.relative_to(site)} loads {loaded}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:", sheet.read_text()), sheet


@pytest.mark.xdist_group("site")
def test_pages_with_a_diagram_bring_the_script_that_draws_it(site: Path) -> None:
    page = (site / "ARCHITECTURE.html").read_text()
    assert 'class="mermaid"' in page
    assert 'src="assets/mermaid.tiny.js"' in page
    assert page.index("mermaid.tiny.js") < page.index("bundle."), "the theme would take it from the network"
    assert "mermaid.tiny.js" not in (site / "reference/settings.html").read_text()


@pytest.mark.xdist_group("site")
def test_the_reference_has_every_setting_command_and_error(site: Path) -> None:
    told = (site / "reference/settings.html").read_text()
    assert [name for name in settings.DESCRIPTIONS if f'id="{name}"' not in told] == []
    told = (site / "reference/commands.html").read_text()
    names = [command.name or getattr(command.callback, "__name__", "") for command in commands.registered_commands]
    assert len(names) > 10
    assert [name for name in names if f'id="emq-{name}"' not in told] == []
    told = (site / "reference/pools.html").read_text()
    fields = [field for struct in (Pool, Resource, TaskType, Limit) for field in struct.__struct_fields__]
    assert [name for name in fields if f"<code>{name}</code>" not in told] == []
    told = (site / "reference/errors.html").read_text()
    kinds = [
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.EMQError)
    ]
    assert [name for name in kinds if f"<code>{name}</code>" not in told] == []


@pytest.mark.xdist_group("site")
def test_the_site_has_the_openapi_document_of_its_version(site: Path) -> None:
    assert json.loads((site / "openapi.json").read_text()) == application.document()
    assert 'href="openapi.json"' in (site / "other-languages.html").read_text()


def test_pages_with_generated_parts_say_in_the_checkout_where_to_read_them() -> None:
    sys.path.insert(0, str(ROOT / "scripts" / "site"))
    try:
        import generated
    finally:
        sys.path.pop(0)
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        note = f"`make docs` builds the page into\n> `site/reference/{page.stem}.html`"
        assert note in page.read_text(), page
        shown = generated.inserted(page.read_text(), page.name, pytest.fail)
        assert "make docs" not in shown
        assert "generated:" not in shown


MISTAKES = {
    "[a page](none.md)": "none.md",
    "[a place](#none)": "#none",
    "[code](../emq/none.py)": "none.py",
    "<!-- generated: none -->": "nothing is generated for 'none'",
}


def test_mistakes_in_a_page_fail_the_build(tmp_path: Path) -> None:
    told = mistaken(tmp_path, "\n\n".join(["# A page", *MISTAKES, ""]))
    assert [complaint for complaint in MISTAKES.values() if complaint not in told] == []


def test_a_name_that_the_code_lacks_fails_the_build(tmp_path: Path) -> None:
    assert "emq.Application" in mistaken(tmp_path, "# A page\n\n::: emq.Application\n")


QUESTIONS = ROOT / "docs" / "questions.md"
WORDS = {
    "limit the rate of each tenant": "rate limit per tenant",
    "limit concurrency for each tenant": "concurrency per tenant",
    "several queues share one rate limit": "share rate limit",
    "rate limit global": "global rate limit",
    "noisy tenant": "noisy neighbor",
    "million tenants cost": "million tenants",
    "create queues dynamically": "dynamic queues",
    "requests and tokens per minute": "openai tokens per minute",
    "shared fairly": "fair share tenants",
    "answers 429": "429",
    "how long a queue may get": "limit queue length",
    "retry only some errors": "retry some errors",
    "maximum number of retries": "exponential backoff",
    "poison messages": "poison message",
    "worker crashes": "worker crash",
    "visibility timeout": "visibility timeout",
    "timeout for a handler": "task timeout",
    "message be lost": "message lost",
    "prove that nothing was lost": "prove nothing lost",
    "exactly once": "exactly once",
    "job executed twice": "job executed twice",
    "avoid duplicate jobs": "duplicate jobs",
    "delivered in order": "message order",
    "keep low priorities from starving": "priority starvation",
    "merged while they wait": "merge updates",
    "delay a message": "delay message",
    "Is there cron": "cron",
    "expire messages": "expire message",
    "cancel a job": "cancel job",
    "handler block": "blocking handler",
    "messages in batches": "batch",
    "payload types": "pydantic",
    "size may a payload": "payload size",
    "result of a task": "result backend",
    "workflows, chains": "workflow",
    "within a database transaction": "database transaction",
    "FastAPI, Django or Flask": "django",
    "test handlers": "unit test",
    "reload my code": "reload",
    "other languages": "node.js",
    "verify a webhook's signature": "verify signature",
    "rotate a signing secret": "rotate secret",
    "endpoint disabled": "endpoint disabled",
    "resend failed webhooks": "resend webhook",
    "static IP address": "static ip",
    "SSRF": "ssrf",
    "migrate from Svix": "migrate from svix",
    "run without Redis": "without redis",
    "Redis Cluster or Sentinel": "redis cluster",
    "Windows or macOS": "macos",
    "Docker, Kubernetes or under systemd": "kubernetes",
    "autoscaling": "autoscaling",
    "shut down gracefully": "graceful shutdown",
    "How long is my queue": "queue length",
    "pause a queue": "pause queue",
    "alert for one tenant": "alert for one tenant",
    "monitor it": "prometheus",
    "back up and restore": "backup",
    "upgrade without downtime": "upgrade",
    "How much memory": "how much memory",
    "How fast": "throughput",
}
"""What readers type, by a part of the question that they have."""


def questions() -> dict[str, str]:
    """Return the answer of each question."""
    parts = re.split(r"^### (.+)$", QUESTIONS.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_question_has_an_answer_and_one_click_to_the_rest() -> None:
    found = questions()
    assert len(found) >= 50
    for question, answer in found.items():
        assert len([part for part in WORDS if part in question]) == 1, question
        assert re.search(r"\]\((?!questions)[^)]+\.md", answer), question


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the site."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def hits(page: Page, words: str) -> list[list[str]]:
    """Return the links of the first three hits of a search."""
    box, shown = page.locator("[data-md-component=search-query]"), page.locator("li.md-search-result__item")
    await box.focus()
    for text, state in (("", "detached"), (words, "attached")):
        await box.fill(text)
        await box.press("End")
        with contextlib.suppress(TimeoutError):  # no hit at all
            await shown.first.wait_for(state=state, timeout=5_000)
    return await shown.evaluate_all(
        "items => items.slice(0, 3).map(item => [...item.querySelectorAll('a')].map(a => a.getAttribute('href')))"
    )


@pytest.mark.xdist_group("site")
async def test_the_search_answers_each_question_in_its_first_three_hits(served: str, chromium: Browser) -> None:
    page = await chromium.new_page()
    await page.goto(f"{served}/index.html")
    missed = {}
    for question, answer in questions().items():
        [words] = [words for part, words in WORDS.items() if part in question]
        anchor = re.sub(r"[^\w\s-]", "", question).strip().lower().replace(" ", "-")
        pages = {link.rpartition("/")[2].removesuffix(".md") for link in re.findall(r"\]\(([^)#]+)", answer)}
        wanted = re.compile(rf"/(questions\.html\?[^#]*#{re.escape(anchor)}|({'|'.join(pages)})\.html)")
        found = await hits(page, words)
        if not any(wanted.search(link) for links in found for link in links):
            missed[question] = words, found
    assert not missed


@pytest.mark.xdist_group("site")
def test_the_search_leaves_out_what_is_for_maintainers(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    places = {entry["location"].partition("#")[0] for entry in json.loads(index)["docs"]}
    assert {"questions.html", "quotas.html", "reference/settings.html"} <= places
    inside = re.compile(r"host/|ARCHITECTURE|CHANGELOG|CONTRIBUTING|tests/|source/")
    assert not [place for place in places if inside.match(place)]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_screen_shows_the_dashboard_and_the_demonstration(page: str) -> None:
    text = (ROOT / page).read_text()
    first = text[: text.index("## Use it" if page == "README.md" else "## Start here")]
    shown = [
        (ROOT / page).parent / target for target in re.findall(r"^!\[[^\]]{20,}\]\(([^)]+)\)", first, re.MULTILINE)
    ]
    assert {path.name for path in shown} == {"dashboard-light.png", "demo.svg"}
    assert all(path.exists() for path in shown)


def test_the_recording_shows_the_demonstration_as_it_is_and_loads_nothing() -> None:
    drawing = ElementTree.parse(ROOT / "docs/assets/demo.svg")
    texts = [" ".join("".join(found.itertext()).split()) for found in drawing.iter("{http://www.w3.org/2000/svg}g")]
    everything = " ".join(texts)
    for said in ("2/5 Calm", "3/5 Trouble", "Operators are told: topic FL", "every promise held", "lost 0"):
        assert said in everything
    assert len(texts) > 10
    source = (ROOT / "docs/assets/demo.svg").read_text()
    assert set(re.findall(r"https?://[^\"' )]+", source)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in source
