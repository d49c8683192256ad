// A terminal of xterm.js that shows the output of the daemon's renderer. It receives only the escape
// sequences that gateway/view lists.

import "./csp.mjs";
import { Terminal } from "./vendor/xterm.mjs";
import { FitAddon } from "./vendor/addon-fit.mjs";

const dark = {
  background: "#0c0f14", foreground: "#dfe5ee", cursor: "#dfe5ee", selectionBackground: "#35507a",
  black: "#1d2430", red: "#ff7b72", green: "#63d297", yellow: "#f0b429", blue: "#6cb6ff", magenta: "#c58af9", cyan: "#56d4dd", white: "#c9d1dc",
  brightBlack: "#6e7b8f", brightRed: "#ffa198", brightGreen: "#8ae8b4", brightYellow: "#ffd166", brightBlue: "#a5d0ff", brightMagenta: "#dcb5ff", brightCyan: "#8ce9f0", brightWhite: "#ffffff",
};
const light = {
  background: "#ffffff", foreground: "#1a2230", cursor: "#1a2230", selectionBackground: "#b6d3f5",
  black: "#1a2230", red: "#b3261e", green: "#17733f", yellow: "#8a5a00", blue: "#0b62c4", magenta: "#7a34b8", cyan: "#0b6e78", white: "#5a677a",
  brightBlack: "#5a677a", brightRed: "#c4372f", brightGreen: "#1d8a4c", brightYellow: "#9c6800", brightBlue: "#1f75d6", brightMagenta: "#8d47cc", brightCyan: "#0f808b", brightWhite: "#1a2230",
};
const wantsLight = matchMedia("(prefers-color-scheme: light)");
const narrow = matchMedia("(max-width: 700px), (max-height: 450px)");

// Keys of the touch row.
const keys = { esc: "\x1b", tab: "\t", interrupt: "\x03", enter: "\r" };
const arrows = { up: "A", down: "B", right: "C", left: "D" };

// swiped makes a finger move the lines of term, which xterm.js does not, and call panned(x) when it has
// moved sideways by a third of the element: -1 is to the left.
function swiped(element, term, panned) {
  let from = null;
  element.addEventListener("touchstart", (e) => {
    from = e.touches.length === 1 ? { x: e.touches[0].clientX, y: e.touches[0].clientY } : null;
  }, { passive: true });
  element.addEventListener("touchmove", (e) => {
    if (!from || e.touches.length !== 1) return;
    const { clientX, clientY } = e.touches[0];
    const height = element.clientHeight / term.rows;
    const lines = Math.trunc((from.y - clientY) / height);
    term.scrollLines(lines);
    from.y -= lines * height;
    if (Math.abs(from.x - clientX) < element.clientWidth / 3) return;
    panned(Math.sign(from.x - clientX));
    from.x = clientX;
  }, { passive: true });
}

// show creates a terminal in element. on has typed(Uint8Array), resized(cols, rows) and panned(x).
export function show(element, on) {
  const term = new Terminal({
    allowProposedApi: false, scrollback: 2000, cursorBlink: false, lineHeight: 1.2, minimumContrastRatio: 4.5,
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"), fontSize: narrow.matches ? 12 : 14,
    theme: wantsLight.matches ? light : dark,
    linkHandler: null,
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(element);
  fit.fit();
  const encoder = new TextEncoder();
  let ctrl = false; // applies to the next key of the on-screen keyboard
  let ctrlEnded = () => {};
  const typed = (text) => {
    if (ctrl && text.length === 1) {
      text = String.fromCharCode(text.toUpperCase().charCodeAt(0) & 0x1f);
      ctrl = false;
      ctrlEnded();
    }
    on.typed(encoder.encode(text));
  };
  term.onData(typed);
  term.onBinary((bytes) => on.typed(Uint8Array.from(bytes, (c) => c.charCodeAt(0)))); // mouse reports that are not text
  term.onResize(({ cols, rows }) => on.resized(cols, rows));
  swiped(term.element, term, on.panned);
  const observer = new ResizeObserver(() => fit.fit());
  observer.observe(element);
  const colours = () => (term.options.theme = wantsLight.matches ? light : dark);
  wantsLight.addEventListener("change", colours);
  return {
    size: () => ({ cols: term.cols, rows: term.rows }),
    write: (bytes) => term.write(bytes),
    focus: () => term.focus(),
    press: (key) => typed(key in arrows ? (term.modes.applicationCursorKeysMode ? "\x1bO" : "\x1b[") + arrows[key] : keys[key]),
    ctrl: (on, ended) => { ctrl = on; ctrlEnded = ended; },
    close: () => {
      observer.disconnect();
      wantsLight.removeEventListener("change", colours);
      term.dispose();
      element.replaceChildren();
    },
  };
}
