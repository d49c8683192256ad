// Looking for a text in a replay.

import { call } from "./daemon.mjs";
import { $, marked } from "./dom.mjs";

// findTime is the timeout of a search in ms; the daemon gives up after a minute.
const findTime = 70000;

// finding makes the form of the player look through the record that page.of() names. page has also
// at(), the position in ms, seek(ms), which moves there, done(), for Escape, and ended(), for a login
// that has ended.
export function finding(page) {
  let found = null; // what was found: of, text, matches, more
  let shown = -1; // the index of the shown match

  const step = (by) => {
    const { matches, more } = found;
    if (!matches.length) {
      $("found").textContent = "not found";
      return;
    }
    if (shown >= 0) shown = (shown + by + matches.length) % matches.length;
    else {
      const next = matches.findIndex((m) => m.at_ms >= page.at());
      shown = next < 0 ? 0 : next;
    }
    page.seek(matches[shown].at_ms);
    $("found").textContent = marked(`${shown + 1} of ${matches.length}${more ? "+" : ""}`);
    $("found").title = marked(matches[shown].line);
  };
  const look = async (by) => {
    const [of, text] = [page.of(), $("sought").value.trim()];
    if (!text) return;
    if (found?.of === of && found.text === text) return step(by);
    $("found").textContent = "Looking…";
    try {
      const answer = await call("GET", `${of}&text=${encodeURIComponent(text)}`, undefined, findTime);
      if (page.of() !== of) return;
      found = { of, text, ...answer };
      shown = -1;
      step(by);
    } catch (e) {
      if (e.status === 401) return page.ended();
      $("found").textContent = marked(e.message);
    }
  };
  $("find").addEventListener("submit", (e) => {
    e.preventDefault();
    look(1);
  });
  $("sought").addEventListener("keydown", (e) => {
    if (e.key === "Escape") return page.done();
    if (e.key !== "Enter" || !e.shiftKey) return;
    e.preventDefault();
    look(-1);
  });
}
