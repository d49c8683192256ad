// The form of a row of the list with which one answers a question without opening the session.

import { call } from "./daemon.mjs";
import { button, make, marked } from "./dom.mjs";

const yesOrNo = /\by(es)?\s*\/\s*no?\b/i;

// answering returns a form and show(row), which fits it to a row of the list. ended is called if the
// login has ended.
export function answering(ended) {
  const form = make("form", "answer");
  const text = make("input");
  const said = make("p");
  let row = null;
  let read = null; // the row as it was when they began to type: they may have read no later question
  let sending = false;

  const send = async (words) => {
    if (sending) return;
    sending = true;
    said.textContent = "";
    const { box, session, since, last } = read ?? row;
    const written = text.value;
    text.value = "";
    try {
      await call("POST", `answer/${encodeURIComponent(box.name)}/${encodeURIComponent(session)}`, { text: words, since, last_line: last });
    } catch (problem) {
      if (problem.status === 401) return ended();
      said.textContent = marked(problem.message);
      if (row.since === since && row.last === last && !text.value) text.value = written; // to try again
    } finally {
      sending = false;
    }
    if (!text.value) read = null;
  };
  const choices = ["y", "n"].map((word) => button(word, () => send(word)));
  const submit = make("button", "", "Answer");
  Object.assign(text, { type: "text", autocomplete: "off", spellcheck: false, maxLength: 1000, enterKeyHint: "send" });
  text.addEventListener("input", () => (read ??= row));
  said.setAttribute("role", "alert");
  form.hidden = true;
  form.addEventListener("submit", (e) => {
    e.preventDefault();
    send(text.value);
  });
  form.append(text, submit, ...choices, said);

  const show = (now, mayDrive) => {
    const asked = mayDrive && now.needs === "asks" && ["line", "password"].includes(now.want);
    if (!asked && form.contains(document.activeElement)) form.parentElement.firstChild.focus();
    const other = (than) => than?.since !== now.since || than.last !== now.last;
    if (text.type === "password" && (!asked || other(row))) text.value = ""; // a secret is for one question
    if (asked && other(row)) said.textContent = "";
    if (asked && read && other(read)) {
      if (text.value) said.textContent = `The question has changed; not sent: ${marked(text.value)}`;
      text.value = "";
      read = null;
    }
    row = now;
    form.hidden = !asked;
    text.type = now.want === "password" ? "password" : "text";
    text.setAttribute("aria-label", `Answer ${now.box.name}`);
    for (const c of choices) c.hidden = text.type === "password" || !yesOrNo.test(now.last);
  };
  return { form, show };
}
