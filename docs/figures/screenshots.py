"""The pictures of the report in README, from the page that `isotropy demo` wrote.

    python docs/figures/screenshots.py isotropy-demo/smollm2.html

Needs playwright and a Chromium (as `chromium` on the path, or ISOTROPY_CHROMIUM).
"""

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1180, 1560


def main(page_file: str) -> None:
    chromium = os.environ.get("ISOTROPY_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, offline=True)
        page = context.new_page()
        page.goto(Path(page_file).resolve().as_uri())
        page.wait_for_selector("html[data-drawn=yes]")
        for view, name in enumerate(("before", "after")):
            page.check(f"input[name=view] >> nth={view}")
            page.wait_for_timeout(1000)
            page.screenshot(path=HERE / f"report-{name}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
