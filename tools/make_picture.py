"""Take a page's picture for the docs: `make_picture.py PAGE PICTURE [HASH [HEIGHT]]`.

`make_picture.py demo/report.html docs/report.png`, and
`make_picture.py play-37.html docs/lesson-play.png step=21 1390`.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

page_file, picture, place, height = [*sys.argv[1:], *("", "", "", "1130")[len(sys.argv) - 1 :]]
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=shutil.which("chromium"),
        args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
    )
    page = browser.new_page(viewport={"width": 1080, "height": int(height)})
    page.goto(Path(page_file).resolve().as_uri() + (f"#{place}" if place else ""))
    page.wait_for_timeout(1500)
    page.screenshot(path=picture)
    browser.close()
