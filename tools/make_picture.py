"""Take the README's picture of a report: `make_picture.py demo/report.html docs/report.png`."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

page_file, picture = Path(sys.argv[1]).resolve(), sys.argv[2]
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=shutil.which("chromium"),
        args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
    )
    page = browser.new_page(viewport={"width": 1080, "height": 1130})
    page.goto(page_file.as_uri())
    page.wait_for_timeout(1500)
    page.screenshot(path=picture)
    browser.close()
