"""axe-core in a page, and screenshots of it in every size and colour."""

from __future__ import annotations

import re

from tests.support.browser import FOLDER, axe_script

SCREENS = FOLDER.parent / "screens"
SIZES = ((360, 740), (1440, 900))
RUN = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) =>
      `${id}: ${html.slice(0, 200)} ${failureSummary.replace(/\\s+/g, " ")}`));
}"""
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def look(page, name, *, sizes=SIZES):
    """Look at a page in each size, light and dark; returns what is wrong with it.

    The screenshots are in build/screens.
    """
    SCREENS.mkdir(parents=True, exist_ok=True)
    found = []
    for width, height in sizes:
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            label = f"{name}-{width}-{scheme}"
            page.screenshot(
                path=SCREENS / f"{re.sub(r'[^a-z0-9-]+', '-', label)}.png", animations="disabled"
            )
            found += [f"{label}: {each}" for each in serious(page)]
            if (wide := page.evaluate(WIDE)) > 0:
                found.append(f"{label}: the page is {wide} pixels too wide")
    return found


def serious(page):
    """Return what axe-core finds that is serious or critical."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(axe_script())
    return page.evaluate(RUN)
