// Making, starting, stopping, copying and removing sandboxes.

import { call } from "./daemon.mjs";
import { $, marked } from "./dom.mjs";

const minutes = 10 * 60000; // ms: an image may have to be built

const path = (sandbox, act = "") => "sandboxes/" + encodeURIComponent(sandbox) + act;

// boxes connects the buttons. page has at(), the name of the open sandbox; go(name), which opens one;
// started(name), which shows its terminal; left(), which goes to the list; and ended().
export function boxes(page) {
  // does runs one request, with words while it lasts, and shows its error in element.
  const does = async (words, element, method, to, body) => {
    element.textContent = words;
    element.hidden = false;
    try {
      return await call(method, to, body, minutes);
    } catch (problem) {
      if (problem.status === 401) page.ended();
      else element.textContent = marked(problem.status ? problem.message : "The daemon does not answer; see the list for what was done");
      return null;
    } finally {
      if (element.textContent === words) element.textContent = "";
      element.hidden = !element.textContent;
    }
  };

  $("make").addEventListener("click", () => {
    const open = $("new").hidden;
    $("new").hidden = !open;
    $("make").setAttribute("aria-expanded", String(open));
    if (open) $("new-name").focus();
  });
  $("new").addEventListener("submit", async (e) => {
    e.preventDefault();
    $("create").disabled = true;
    const done = await does("Creating…", $("new-said"), "POST", "sandboxes",
      { name: $("new-name").value.trim(), image: $("new-image").value.trim(), network: $("new-network").value });
    $("create").disabled = false;
    if (!done) return;
    $("new").reset();
    $("new").hidden = true;
    $("make").setAttribute("aria-expanded", "false");
    page.go(done.name);
  });

  const start = async () => {
    const name = page.at();
    if ((await does("Starting…", $("said"), "POST", path(name, "/start"))) && page.at() === name) page.started(name);
  };
  $("start").addEventListener("click", start);
  $("wake").addEventListener("click", start);
  // What ends programs or loses files takes a second click, on a button that says so.
  let sure = () => {};
  const surely = (by, loses, label, act) => {
    $("loses").textContent = loses;
    $("really").textContent = label;
    sure = act;
    $("surely").hidden = false;
    $("really").focus();
    $("spare").onclick = () => {
      $("surely").hidden = true;
      by.focus();
    };
  };
  $("really").addEventListener("click", () => {
    $("surely").hidden = true;
    sure();
  });
  $("stop").addEventListener("click", () => {
    const name = page.at();
    surely($("stop"), `The programs of ${name} end. Its files stay.`, "Stop it",
      () => does("Stopping…", $("said"), "POST", path(name, "/stop")));
  });
  $("fork").addEventListener("click", async () => {
    const done = await does("Copying…", $("said"), "POST", path(page.at(), "/fork"), { name: "" });
    if (done) page.go(done.name);
  });
  $("share").addEventListener("click", async () => {
    const name = page.at();
    const made = await does("Making a link…", $("said"), "POST", path(name, "/link"));
    if (!made || page.at() !== name) return;
    $("until").textContent = new Date(made.expires).toLocaleString();
    $("address").value = made.url;
    $("link").hidden = false;
    $("address").select();
  });
  $("copy").addEventListener("click", async () => {
    $("address").select();
    try {
      await navigator.clipboard.writeText($("address").value);
    } catch {
      document.execCommand("copy"); // not at localhost, and without TLS
    }
  });
  $("remove").addEventListener("click", () => {
    const name = page.at();
    surely($("remove"), `The files and records of ${name} are lost, and commits that nobody fetched.`, "Remove it", async () => {
      if ((await does("Removing…", $("said"), "DELETE", path(name))) && page.at() === name) page.left();
    });
  });
}

// offer shows the buttons that apply to a sandbox of this person, or of somebody else.
export function offer(box, mine) {
  const asleep = box?.state === "stopped";
  $("actions").hidden = !box || !mine;
  $("start").hidden = !asleep && box?.state !== "paused" && box?.state !== "broken";
  $("stop").hidden = asleep;
}
