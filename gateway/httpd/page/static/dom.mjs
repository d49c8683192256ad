// What all modules of the page use to show text.

export const $ = (id) => document.getElementById(id);

// marked returns text with bidirectional control characters written out, because they would change how
// it reads.
export function marked(text) {
  return String(text).replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    (c) => `<U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
}

// make creates an element with text.
export function make(name, kind, text) {
  const e = document.createElement(name);
  if (kind) e.className = kind;
  if (text !== undefined) e.textContent = marked(text);
  return e;
}

// button creates a button with text that calls pressed.
export function button(text, pressed) {
  const b = make("button", "", text);
  b.type = "button";
  b.addEventListener("click", pressed);
  return b;
}
