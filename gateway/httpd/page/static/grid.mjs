// Small pictures of all screens, beside the list while no session is open. They have no more than the
// list and the sessions, so they are hidden from screen readers and the Tab key.

import { open } from "./daemon.mjs";
import { $, button, make, marked } from "./dom.mjs";

const again = 2000; // ms after the end of a connection until show opens another

// pictures returns show(rows, off), which shows a picture for each row of the list; none with off. A
// click calls chosen(id). fill writes a row into an element with its parts. lost() treats the
// connection as lost.
export function pictures(chosen, fill) {
  let socket = null;
  const cards = new Map(); // by id of the session
  const texts = new Map(); // the last screens that were sent; their cards may come later

  // fit draws the used part of a screen as large as it fits.
  const fit = (card, text) => {
    const pre = card.querySelector("pre");
    const frame = pre.parentElement;
    const lines = text.split("\n");
    pre.textContent = marked(text);
    pre.style.width = `${Math.max(40, ...lines.map((line) => line.length))}ch`;
    const scale = Math.min(1, frame.clientWidth / pre.offsetWidth, frame.clientHeight / (Math.max(12, lines.length) * 12));
    pre.style.transform = `scale(${scale})`;
  };
  const follow = () => {
    socket = open("screens", {
      bytes: () => {},
      said: ({ screens }) => {
        for (const { id, text } of screens) {
          texts.set(id, text);
          if (cards.has(id)) fit(cards.get(id), text);
        }
      },
      closed: () => {
        const ended = socket;
        setTimeout(() => socket === ended && (socket = null), again);
      },
    });
  };
  const card = (id) => {
    const li = make("li");
    const b = button("", () => chosen(id));
    b.className = "card";
    b.tabIndex = -1;
    const about = make("span", "row");
    about.append(make("span", "title"), make("span", "badge"), make("span", "last"), make("span", "typing"));
    const frame = make("span", "picture");
    frame.append(make("pre"));
    b.append(about, frame);
    li.append(b);
    return li;
  };

  const show = (rows, off) => {
    $("grid").hidden = off || rows.length === 0;
    $("nothing").hidden = !$("grid").hidden;
    if ($("grid").hidden) {
      socket?.close();
      socket = null;
      cards.clear();
      texts.clear();
      $("grid").replaceChildren();
      return;
    }
    const added = [];
    const items = rows.map((row) => {
      const id = row.box.name + "~" + row.session;
      if (!cards.has(id)) added.push(id);
      const li = cards.get(id) ?? card(id);
      cards.set(id, li);
      fill(li.querySelector(".row"), row);
      return li;
    });
    for (const [id, li] of cards) if (!items.includes(li)) cards.delete(id);
    if (items.length !== $("grid").children.length || items.some((li, i) => li !== $("grid").children[i])) $("grid").replaceChildren(...items);
    for (const id of added) fit(cards.get(id), texts.get(id) ?? "");
    if (!socket) follow();
  };
  return { show, lost: () => socket?.lost() };
}
