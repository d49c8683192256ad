// Notifications of the browser: one for each need that begins while the page is not seen. It goes when
// the need ends.

import { $, marked } from "./dom.mjs";

const shown = new Map(); // by the row's id
let known = null; // ids and beginnings of the needs of the last list

const show = () => ($("notify").hidden = !("Notification" in window) || Notification.permission !== "default");

$("notify").addEventListener("click", async () => {
  await Notification.requestPermission().catch(() => {});
  show();
});
show();

// notice looks at the needs of the list, each {id, since, title, text}. open(id) shows a session.
export function notice(needs, open) {
  const now = new Map(needs.map((n) => [n.id, n.since]));
  for (const [id, n] of shown) {
    if (now.has(id) && !document.hasFocus()) continue;
    n.close();
    shown.delete(id);
  }
  const news = known ? needs.filter((n) => known.get(n.id) !== n.since) : [];
  known = now;
  if (!("Notification" in window) || Notification.permission !== "granted" || document.hasFocus()) return;
  for (const { id, title, text } of news) {
    try {
      const n = new Notification(marked(title), { body: marked(text), tag: "sandboxd-" + id });
      n.addEventListener("click", () => {
        window.focus();
        open(id);
      });
      shown.set(id, n);
    } catch {
      return; // browsers of phones show none from pages
    }
  }
}
