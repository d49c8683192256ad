// The dashboard: a live list of sessions, and one session beside it, to watch, type in or replay. Data
// from sandboxes enters the document as text only.

import { answering } from "./answer.mjs";
import { boxes, offer } from "./boxes.mjs";
import { call, closed, login, open } from "./daemon.mjs";
import { $, make, marked } from "./dom.mjs";
import { finding } from "./find.mjs";
import { files } from "./files.mjs";
import { ports } from "./ports.mjs";
import { pictures } from "./grid.mjs";
import { notice } from "./notify.mjs";

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// terminals loads the terminal module. It is larger than all others together, so the list does not wait
// for it. After a failure, or after loadTime in ms, it is loaded by another name, see boot.mjs.
const loadTime = 60000;
let loading = null;
let failures = 0;
const terminals = () =>
  (loading ??= Promise.race([
    import((failures ? `./~${failures}/` : "./") + "terminal.mjs"),
    pause(loadTime).then(() => Promise.reject(new Error("timeout"))),
  ]).catch((e) => {
    loading = null;
    failures++;
    throw e;
  }));

// ---- Logging in

async function start() {
  const given = new URLSearchParams(location.hash.slice(1));
  const [code, link] = [given.get("code"), given.get("link")];
  if (code || link) {
    history.replaceState(null, "", "/"); // others should not see it
    if (link) askFirst({ link }, "login-shared");
    else if (document.documentElement.dataset.from === "elsewhere") askFirst({ code }, "login-link");
    else await enter({ code });
    return;
  }
  if (login.get()) follow();
  else askToken();
}

// enter logs in. If the daemon does not answer, it retries for a while: the link's code works only once,
// and is no longer in the address.
async function enter(how) {
  for (let tries = 0; ; tries++) {
    try {
      login.set(await call("POST", "login", how.link ? { token: how.link } : how));
      break;
    } catch (problem) {
      if (problem.status || tries === 6) {
        if (how.link && login.get()) return askToken(problem.message + "; reload this page for your own login", true);
        askToken(problem.message);
        if (!problem.status && how.code) {
          history.replaceState(null, "", "/#code=" + encodeURIComponent(how.code));
          $("login-problem").textContent += "; reload this page when it answers again";
        }
        return;
      }
    }
    $("login").hidden = false;
    $("login-problem").textContent = "The daemon does not answer; trying again…";
    await pause(250 * 2 ** tries);
  }
  now = null;
  follow();
}

let asked = null; // how to log in if they agree

// askFirst shows why before it logs in: by a code from another site, which may log the visitor in as an
// attacker who then sees what they do, or by a link that others share, which replaces a login.
function askFirst(how, why) {
  asked = how;
  leave();
  $("app").hidden = true;
  $("login").hidden = false;
  $("login-how").hidden = true;
  $("token").required = false;
  $(why).hidden = false;
}

// askToken asks for a token, and forgets the login unless it is to be kept.
function askToken(problem = "", keep = false) {
  leave();
  list?.close();
  list = null;
  if (!keep) login.clear();
  $("app").hidden = true;
  $("login").hidden = false;
  $("login-problem").textContent = marked(problem);
  $("token").focus();
}

$("login").addEventListener("submit", (e) => {
  e.preventDefault();
  const token = $("token").value;
  const how = asked ?? { token };
  asked = null;
  $("token").value = "";
  $("login-how").hidden = false;
  $("token").required = true;
  $("login-link").hidden = $("login-shared").hidden = true;
  enter(how);
});

$("logout").addEventListener("click", async () => {
  await call("POST", "logout", { revoke: login.get()?.made ?? false }).catch(() => {});
  askToken();
});

// ---- The list

let list = null; // its socket
let now = null; // the last list
let skew = 0; // difference to the daemon's clock
let heard = 0; // time of the daemon's last message
let retry = 0;
let lost = false; // the list is old: the daemon does not answer

function follow() {
  $("login").hidden = true;
  $("app").hidden = false;
  if (!now) $("summary").textContent = "Connecting…";
  heard = Date.now();
  list?.close();
  list = open("live", {
    bytes: () => {},
    said: (message) => {
      retry = 0;
      lost = false;
      heard = Date.now();
      skew = message.now - heard;
      if (!message.list) return; // no change
      const first = !now;
      now = message.list;
      draw();
      if (first) {
        route();
        // The form that was hidden above has the focus until the browser draws the page.
        const free = document.activeElement === document.body || $("login").contains(document.activeElement);
        if (!at && free) $("list").querySelector(".row")?.focus();
        setTimeout(() => terminals().catch(() => {}), 0); // a failure is shown when a terminal is opened
      }
    },
    closed: (code, reason) => {
      list = null;
      if (code === closed.token) askToken("Your login has ended: " + reason);
      else again();
    },
  });
}

// A connection may be lost without notice, such as after this machine was suspended. The daemon sends a
// message at least every 10 s.
const silence = 25000; // ms
const giveUp = () => {
  const other = at?.socket;
  list?.lost();
  grid.lost();
  other?.lost();
};
setInterval(() => list && Date.now() - heard >= silence && giveUp(), 1000);
addEventListener("offline", giveUp);

const noAnswer = "The daemon does not answer; trying again…";

// again reconnects with growing pauses. The page cannot read why a handshake was rejected, so it checks
// the login with a request.
async function again() {
  lost = true;
  $("summary").textContent = noAnswer;
  $("summary").className = "";
  const key = login.get()?.key;
  const other = () => !key || login.get()?.key !== key; // logged out meanwhile, or logged in again
  await pause(Math.min(250 * 2 ** retry++, 8000));
  if (other()) return;
  try {
    await call("GET", "records/-");
  } catch (problem) {
    if (other()) return;
    if (problem.status === 401) return askToken("Your login has ended");
    if (!problem.status) return again();
  }
  if (!other() && !list) follow();
}

const order = { asks: 1, denied: 2, attention: 3, dead: 4 };

// rows returns the rows of the list: each session, and each sandbox without sessions.
function rows() {
  const all = [];
  for (const box of now.sandboxes) {
    for (const s of box.sessions) all.push({ box, session: s.session, needs: s.needs, label: s.label, since: s.since, want: s.want, last: s.last_line, keyboard: s.keyboard, phase: s.phase });
    if (!box.sessions.length) all.push({ box, session: "main", needs: "", last: "", keyboard: "" });
  }
  return all.sort((a, b) => (order[a.needs] ?? 9) - (order[b.needs] ?? 9) || (a.needs ? a.since.localeCompare(b.since) : nameOf(a).localeCompare(nameOf(b))));
}

const nameOf = (row) => row.box.name + (row.session === "main" ? "" : "~" + row.session);

function ago(since) {
  const s = Math.max(0, (Date.now() + skew - Date.parse(since)) / 1000);
  return s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} m` : s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}

function draw() {
  const all = rows();
  const needed = all.filter((r) => r.needs).length;
  $("who").textContent = now.principal + (now.rights === "watch" ? " · watch only" : "");
  const summary = lost ? noAnswer : !all.length ? "No sandboxes. Create one: sandboxd new demo" : !needed ? "Nobody needs you" : needed === 1 ? "1 needs you" : `${needed} need you`;
  if ($("summary").textContent !== summary) $("summary").textContent = summary; // a screen reader announces each change
  $("summary").className = needed && !lost ? "needed" : "";
  document.title = (needed ? `(${needed}) ` : "") + "sandboxd";
  notice(all.filter((r) => r.needs).map((r) => ({ id: idOf(r), since: r.needs + r.since, title: `${nameOf(r)}: ${r.label}`, text: r.last })), go);
  offer(boxOf(at?.sandbox), mine(boxOf(at?.sandbox)));
  $("make").hidden = now.rights === "watch";
  for (const tab of ["files", "ports"]) $("tab-" + tab).hidden = boxOf(at?.sandbox)?.drive === false;
  const some = filtered(all);
  const shown = new Map([...$("list").children].map((li) => [li.firstChild.dataset.row, li]));
  const items = some.map((row) => {
    const id = idOf(row);
    const li = shown.get(id) ?? item(id);
    fill(li.firstChild, row, id);
    forms.get(li)(row, row.box.drive);
    return li;
  });
  const places = items.map((li) => li.firstChild.dataset.row + li.lastChild.hidden).join();
  if (places !== drawn.places) drawn = { places, at: performance.now() };
  grid.show(some, at || !wide.matches);
  const focused = $("list").contains(document.activeElement) ? document.activeElement : null; // after a form gave it to its row
  if (items.length !== $("list").children.length || items.some((li, i) => li !== $("list").children[i])) {
    $("list").replaceChildren(...items);
    if (focused) (focused.isConnected ? focused : $("list").querySelector(".row"))?.focus(); // it loses the focus when it is moved
  }
}

let drawn = { places: "", at: 0 }; // what is where in the list, and since when

// A click on what has just come under the pointer was meant for something else. Clicks by keys have no
// detail.
const aim = 400; // ms
$("list").addEventListener("click", (e) => {
  if (!e.detail || performance.now() - drawn.at >= aim) return;
  e.stopPropagation();
  e.preventDefault();
}, true);

// fewRows need no filter.
const fewRows = 5;

// filtered returns the rows that have the words of the filter, in whatever order.
function filtered(all) {
  const words = $("filter").value.toLowerCase().split(" ").filter(Boolean);
  $("filter").hidden = !words.length && all.length <= fewRows && document.activeElement !== $("filter");
  return all.filter((r) => {
    const text = [nameOf(r), r.box.owner, r.box.image, r.box.state, r.label, r.phase, r.last].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

$("filter").addEventListener("input", draw);
$("filter").addEventListener("keydown", (e) => {
  if (e.key === "Escape") $("filter").value = "";
  else if (e.key !== "Enter" && e.key !== "ArrowDown") return;
  e.preventDefault();
  draw();
  $("list").querySelector(".row")?.focus();
});

const wide = matchMedia("(min-width: 701px) and (min-height: 451px)");
const grid = pictures((id) => go(id), (b, row) => fill(b, row, idOf(row)));
const idOf = (row) => row.box.name + "~" + row.session;

function item(id) {
  const li = make("li");
  const b = make("button", "row");
  b.type = "button";
  b.dataset.row = id;
  b.append(make("span", "title"), make("span", "badge"), make("span", "last"), make("span", "typing"));
  b.addEventListener("click", () => go(id));
  const { form, show } = answering(() => askToken("Your login has ended"));
  forms.set(li, show);
  li.append(b, form);
  return li;
}

const forms = new WeakMap(); // of the items of the list

const boxOf = (name) => now?.sandboxes.find((box) => box.name === name);
const mine = (box) => box?.owner === now.principal && now.rights !== "watch";

function fill(b, row, id) {
  const set = (kind, text) => {
    const e = b.querySelector("." + kind);
    text = marked(text);
    if (e.textContent !== text) e.textContent = text;
  };
  b.className = "row " + (row.needs || "");
  b.setAttribute("aria-current", String(id === at?.id));
  set("title", nameOf(row) + (row.box.owner === now.principal ? "" : ` (${row.box.owner})`));
  set("badge", row.needs ? `${row.label} · ${ago(row.since)}` : row.box.state === "running" ? row.phase ?? "no session yet" : row.box.state);
  set("last", row.last || row.box.reason || "");
  set("typing", row.keyboard ? `${row.keyboard} typing` : "");
}

setInterval(() => now && !$("app").hidden && draw(), 1000); // updates times

$("list").addEventListener("keydown", (e) => {
  const all = [...$("list").querySelectorAll(".row")];
  const i = all.indexOf(document.activeElement);
  if (i < 0) return; // keys of an answer
  const to = { ArrowDown: i + 1, ArrowUp: i - 1, Home: 0, End: all.length - 1, j: i + 1, k: i - 1 }[e.key];
  if (to === undefined || e.ctrlKey || e.metaKey || e.altKey) return;
  e.preventDefault();
  all[Math.max(0, Math.min(to, all.length - 1))]?.focus();
});

document.addEventListener("keydown", (e) => {
  if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || $("filter").hidden || e.target.closest?.("input, textarea, select")) return;
  e.preventDefault();
  $("filter").focus();
});

// ---- One session

let at = null; // the open session: id, sandbox, session, and socket and term while connected

const go = (id, what = "") => (location.hash = id + what);
addEventListener("hashchange", () => (/^#(code|link)=/.test(location.hash) ? start() : now && route()));

// route opens what the address names: #SANDBOX~SESSION, …/records, …/replay/RUN, …/files/PATH, …/ports.
function route() {
  let address = "";
  try {
    address = decodeURIComponent(location.hash.slice(1));
  } catch {
    // not an address of the page
  }
  const [of, what, ...more] = address.split("/");
  if (!of) return leave();
  const [sandbox, session = "main"] = of.split("~");
  leave(false);
  at = { id: sandbox + "~" + session, sandbox, session };
  $("app").classList.add("working");
  $("work").hidden = false;
  $("name").textContent = sandbox + (session === "main" ? "" : "~" + session) + (what === "replay" ? " · replay" : "");
  $("tab-live").setAttribute("aria-selected", String(!what));
  $("tab-records").setAttribute("aria-selected", String(what === "records" || what === "replay"));
  for (const tab of ["files", "ports"]) $("tab-" + tab).setAttribute("aria-selected", String(what === tab));
  draw();
  $("stopped").hidden = boxOf(sandbox)?.state !== "stopped";
  $("wake").hidden = !mine(boxOf(sandbox));
  if (what === "records" || (!what && !$("stopped").hidden)) records(); // looking starts nothing
  else if (what === "replay") replay(Number(more[0]) || 0);
  else if (what === "files") browse(more.join("/"));
  else if (what === "ports") listen();
  else watch();
}

// leave closes the session, and shows the list unless another session follows.
function leave(alone = true) {
  at?.socket?.close();
  at?.term?.close();
  const had = at;
  at = null;
  $("app").classList.remove("working");
  for (const part of ["work", "problem", "touch", "keyboard", "player", "records", "files", "ports", "none", "stopped", "surely", "said", "link"]) $(part).hidden = true;
  $("stage").hidden = false;
  if (alone && now && had && !$("app").hidden) draw();
}

// detach returns to the list, with the focus on the session's row.
function detach() {
  const id = at?.id;
  location.hash = "";
  leave();
  ($("list").querySelector(`[data-row="${CSS.escape(id ?? "")}"]`) ?? $("list").querySelector(".row"))?.focus();
}

function problem(words) {
  $("problem").textContent = marked(words);
  $("problem").hidden = !words;
}

// connect opens a terminal and its socket.
async function connect(path, on) {
  const here = at;
  const still = "Still connecting…";
  const slow = setTimeout(() => at === here && problem(still), 2000);
  const answered = () => {
    clearTimeout(slow);
    if (at === here && $("problem").textContent === still) problem("");
  };
  const drawn = await terminals().catch(() => null);
  if (at !== here) return clearTimeout(slow); // another session was opened meanwhile
  if (!drawn) {
    clearTimeout(slow);
    return on.closed(0, "");
  }
  try {
    here.term = drawn.show($("terminal"), {
      typed: (bytes) => here.socket?.type(bytes),
      resized: (cols, rows) => here.socket?.say({ do: "resize", cols, rows }),
      panned: (x) => here.socket?.say({ do: "pan", x }),
    });
  } catch (e) {
    clearTimeout(slow);
    return problem("This browser cannot show a terminal: " + e.message);
  }
  const { cols, rows } = here.term.size();
  here.socket = open(`${path}${path.includes("?") ? "&" : "?"}cols=${cols}&rows=${rows}`, {
    bytes: here.term.write,
    said: (message) => {
      answered();
      on.said(message);
    },
    closed: (code, reason) => {
      clearTimeout(slow);
      here.socket = null;
      if (at !== here) return;
      if (code === closed.token) askToken("Your login has ended: " + reason);
      else on.closed(code, reason);
    },
  });
  here.term.focus();
}

const inPath = (sandbox, session) => encodeURIComponent(sandbox) + "/" + encodeURIComponent(session);

function watch() {
  const here = at;
  let over = false;
  $("touch").hidden = now.rights === "watch";
  connect("terminal/" + inPath(at.sandbox, at.session), {
    said: (message) => {
      if (message.stands) stand(message.stands);
      if (message.ended) {
        over = true;
        if (message.ended.status === 0 && message.ended.words.startsWith("detached")) detach();
        else problem(message.ended.words);
      }
    },
    closed: (code, reason) => {
      $("keyboard").hidden = true;
      if (over) return;
      if (code === closed.failed) return problem(reason);
      problem("The connection is lost; trying again…");
      setTimeout(() => at === here && route(), 1000);
    },
  });
}

// stand shows who has the keyboard, and the buttons that apply.
function stand(s) {
  problem("");
  $("keyboard").hidden = false;
  $("typing").className = s.holds ? "mine" : "";
  const who = s.holds ? (s.asking ? `${s.asking} asks for the keyboard` : s.private ? "You type, and only you see it" : "You type") : s.keyboard ? `${s.keyboard} types` : s.may_drive ? "Nobody types: just type" : "Nobody types";
  const words = marked(s.private && !s.holds ? `${who} in private` : who);
  if ($("typing").textContent !== words) $("typing").textContent = words;
  const ask = s.keyboard.startsWith("person:") && !s.owner;
  $("take").hidden = s.holds || !s.may_drive || s.asked;
  $("take").textContent = ask ? "Ask for the keyboard" : "Take the keyboard";
  $("give").hidden = !s.holds && !s.asked;
  $("give").textContent = s.asked ? "Cancel request" : "Give back";
  $("keep").hidden = !s.holds || !s.asking;
  $("private").hidden = !s.holds;
  $("private").textContent = s.private ? "End private" : "Private";
}

for (const what of ["take", "give", "keep", "private"]) {
  $(what).addEventListener("click", () => {
    at?.socket?.say({ do: what });
    at?.term?.focus();
  });
}
$("leave").addEventListener("click", detach);
$("back").addEventListener("click", detach);
$("tab-live").addEventListener("click", () => at && go(at.id));
$("tab-records").addEventListener("click", () => at && go(at.id, "/records"));
for (const tab of ["files", "ports"]) $("tab-" + tab).addEventListener("click", () => at && go(at.id, "/" + tab));

for (const b of $("touch").querySelectorAll("button")) {
  b.addEventListener("pointerdown", (e) => e.preventDefault()); // keeps the on-screen keyboard open
  b.addEventListener("click", () => {
    if (!at?.term) return;
    if (b.dataset.key !== "ctrl") return at.term.press(b.dataset.key);
    const on = b.getAttribute("aria-pressed") !== "true";
    b.setAttribute("aria-pressed", String(on));
    at.term.ctrl(on, () => b.setAttribute("aria-pressed", "false"));
    at.term.focus();
  });
}

// browse shows a directory: path without its first slash, or the home directory.
function browse(path) {
  const here = at;
  $("stage").hidden = true;
  files(here.sandbox, path && "/" + path, { ...shownFor(here), go: (to) => go(here.id, "/files" + encodeURIComponent(to)) });
}

// listen shows the ports of the sandbox.
function listen() {
  $("stage").hidden = true;
  ports(at.sandbox, shownFor(at));
}

// shownFor returns what a view needs of the page while session here is open.
const shownFor = (here) => ({
  here: () => at === here,
  problem: (e) => (e.status === 401 ? askToken("Your login has ended") : problem(e.message)),
});

// ---- Records

const clock = (ms) => {
  const s = Math.max(0, Math.floor(ms / 1000));
  const two = (n) => String(n).padStart(2, "0");
  return (s >= 3600 ? `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}` : Math.floor(s / 60)) + ":" + two(s % 60);
};

async function records() {
  const here = at;
  $("stage").hidden = true;
  $("records").hidden = false;
  $("records").replaceChildren();
  try {
    const answer = await call("GET", "records/" + encodeURIComponent(here.sandbox));
    if (at !== here) return;
    const all = answer.records.reverse();
    if (!all.length) problem("This sandbox has no records");
    $("records").replaceChildren(...all.map((r) => {
      const li = make("li");
      const b = make("button", "row");
      b.type = "button";
      b.append(make("span", "title", r.session + (r.run ? ` · run ${r.run}` : "")), make("span", "badge", clock(r.duration_ms)),
        make("span", "last", `${new Date(r.begun).toLocaleString()} · ${Math.ceil(r.bytes / 1024)} KB${r.ended ? "" : " · live"}`));
      b.addEventListener("click", () => go(`${here.sandbox}~${r.session}`, "/replay/" + r.run));
      li.append(b);
      return li;
    }));
    $("records").querySelector("button")?.focus();
  } catch (e) {
    if (e.status === 401) askToken("Your login has ended");
    else if (at === here) problem(e.message);
  }
}

let sought = 0; // time of the last move of the slider
const stale = 300; // ms after a move, during which a reported position may be older

// showPlace shows the position of the replay. A slider that was just moved stays until the daemon must
// have received the move.
function showPlace(place) {
  $("player").hidden = false;
  $("play").textContent = place.paused ? "Play" : "Pause";
  $("seek").max = place.long_ms;
  $("seek").setAttribute("aria-valuetext", `${clock(place.at_ms)} of ${clock(place.long_ms)}`);
  $("clock").textContent = `${clock(place.at_ms)} / ${clock(place.long_ms)}`;
  if ([...$("speed").options].some((o) => Number(o.value) === place.speed)) $("speed").value = String(place.speed);
  const wait = sought + stale - Date.now();
  if (wait <= 0) $("seek").value = place.at_ms;
  else setTimeout(() => at && at.place === place && showPlace(place), wait);
}

// goOn restores position, speed and pause after a lost connection.
function goOn(place) {
  at.socket.say({ do: "seek", at_ms: place.at_ms });
  at.socket.say({ do: "speed", speed: place.speed });
  if (place.paused) at.socket.say({ do: "key", key: " " });
}

function replay(run) {
  const here = at;
  let over = false;
  here.find = `find/${inPath(at.sandbox, at.session)}?run=${run}`;
  $("found").textContent = "";
  connect(`replay/${inPath(at.sandbox, at.session)}?run=${run}`, {
    said: (message) => {
      if (message.place) {
        if (here.lost) goOn(here.lost);
        here.lost = null;
        return showPlace((here.place = message.place));
      }
      over = true;
      go(here.id, "/records");
    },
    closed: (code, reason) => {
      if (over) return;
      if (code === closed.failed) return problem(reason);
      problem("The connection is lost; trying again…");
      setTimeout(() => {
        if (at !== here) return;
        const lost = here.lost ?? here.place;
        route();
        at.lost = lost;
      }, 1000);
    },
  });
}

boxes({
  at: () => at?.sandbox, go,
  started: (name) => {
    const box = boxOf(name);
    if (box) box.state = "running"; // the next list says so, too
    route();
  },
  left: detach, ended: () => askToken("Your login has ended"),
});

const press = (key) => () => at?.socket?.say({ do: "key", key });
$("play").addEventListener("click", press(" "));
$("before").addEventListener("click", press("["));
$("after").addEventListener("click", press("]"));
$("speed").addEventListener("change", () => at?.socket?.say({ do: "speed", speed: Number($("speed").value) }));
$("seek").addEventListener("input", () => {
  sought = Date.now();
  at?.socket?.say({ do: "seek", at_ms: Number($("seek").value) });
});

finding({
  of: () => at?.find, at: () => at?.place?.at_ms ?? 0, done: () => at?.term?.focus(),
  seek: (ms) => {
    if (at?.place && !at.place.paused) at.socket?.say({ do: "key", key: " " });
    at?.socket?.say({ do: "seek", at_ms: ms });
  },
  ended: () => askToken("Your login has ended"),
});

start();
