// The files of a running sandbox: look, preview, download and upload.

import { Problem, ask, call } from "./daemon.mjs";
import { $, button, make, marked } from "./dom.mjs";

const shown = 256 << 10; // bytes of a preview
const pictures = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" };
const largestPicture = 16 << 20;
const uploadTime = 60 * 60000; // ms

const where = (what, sandbox, path) => `${what}/${encodeURIComponent(sandbox)}?path=${encodeURIComponent(path)}`;
const inside = (dir, name) => (dir === "/" ? "" : dir) + "/" + name;
const size = (n) => (n < 1024 ? `${n} B` : n < 1 << 20 ? `${Math.round(n / 1024)} KB` : n < 1 << 30 ? `${(n / (1 << 20)).toFixed(1)} MB` : `${(n / (1 << 30)).toFixed(1)} GB`);

let picture = ""; // the address of the shown picture

// files shows directory path of a sandbox, or its home. page has here(), which is false when something
// else is shown by then, go(path), which opens a directory, and problem(error).
export async function files(sandbox, path, page) {
  $("files").hidden = false;
  $("entries").replaceChildren();
  $("preview").replaceChildren();
  let answer;
  try {
    answer = await call("GET", where("files", sandbox, path));
  } catch (e) {
    return page.here() && page.problem(e);
  }
  if (!page.here()) return;
  const dir = answer.path;
  $("path").textContent = marked(dir);
  const save = async (name) => {
    try {
      const bytes = await (await ask("GET", where("file", sandbox, inside(dir, name)), undefined, uploadTime)).blob();
      const a = make("a");
      a.href = URL.createObjectURL(bytes);
      a.download = name;
      a.click();
      setTimeout(() => URL.revokeObjectURL(a.href), 60000);
    } catch (e) {
      if (page.here()) page.problem(e instanceof Problem ? e : new Problem(0));
    }
  };
  const preview = async (f) => {
    const kind = pictures[f.name.split(".").pop().toLowerCase()];
    const most = kind ? largestPicture : shown;
    let bytes;
    try {
      bytes = await (await ask("GET", where("file", sandbox, inside(dir, f.name)) + `&most=${most}`, undefined, 60000)).arrayBuffer();
    } catch (e) {
      if (f.kind === "link" && e.status === 400 && page.here()) return page.go(inside(dir, f.name)); // to a directory
      return page.here() && page.problem(e instanceof Problem ? e : new Problem(0));
    }
    if (!page.here()) return;
    URL.revokeObjectURL(picture);
    const head = make("p", "", `${f.name} · ${size(f.size)}${f.size > most ? ` · the first ${size(most)}` : ""} `);
    head.append(button("Download", () => save(f.name)));
    let body;
    if (kind && f.size <= most) {
      body = make("img");
      body.alt = marked(f.name);
      body.src = picture = URL.createObjectURL(new Blob([bytes], { type: kind }));
    } else if (new Uint8Array(bytes).subarray(0, 8192).includes(0)) {
      body = make("p", "", "No text: download it to see it.");
    } else {
      body = make("pre", "", new TextDecoder().decode(bytes));
      body.tabIndex = 0;
    }
    $("preview").replaceChildren(head, body);
  };
  // What git says has changed here. Lines have the colours of a difference.
  $("changes").onclick = async () => {
    let changed;
    try {
      changed = await call("GET", where("changes", sandbox, dir));
    } catch (e) {
      return page.here() && page.problem(e);
    }
    if (!page.here()) return;
    const pre = make("pre");
    pre.tabIndex = 0;
    const kinds = { "+": "added", "-": "deleted", "@": "part" };
    const parts = []; // lines of one kind
    for (const line of changed.text.split("\n")) {
      const kind = kinds[line[0]] ?? "";
      if (parts.at(-1)?.kind !== kind) parts.push({ kind, lines: [] });
      parts.at(-1).lines.push(line + "\n");
    }
    pre.append(...parts.slice(0, 20000).map((p) => make("span", p.kind, p.lines.join(""))));
    $("preview").replaceChildren(make("p", "", `Changes in the repository of ${dir}${changed.cut ? " · the first 1 MB" : ""}`), pre);
  };
  const entry = (name, about, open) => {
    const li = make("li");
    const b = button("", open);
    b.className = "row";
    b.append(make("span", "title", name), make("span", "badge", about));
    b.disabled = !open;
    li.append(b);
    return li;
  };
  const all = answer.files.map((f) => {
    const of = f.kind === "dir" ? "" : f.kind === "file" ? size(f.size) : f.kind;
    if (f.unreadable) return entry(f.name, "the name is not UTF-8");
    if (f.kind === "dir" || f.kind === "link") return entry(f.name + "/".repeat(f.kind === "dir"), of, () => (f.kind === "dir" ? page.go(inside(dir, f.name)) : preview(f)));
    return entry(f.name, of, f.kind === "file" && (() => preview(f)));
  });
  if (dir !== "/") all.unshift(entry("../", "", () => page.go(dir.replace(/\/[^/]*$/, "") || "/")));
  if (answer.more) all.push(entry(`${answer.more} more are not listed`, ""));
  $("entries").replaceChildren(...all);
  $("entries").querySelector("button")?.focus();
  $("upload").onchange = async () => {
    for (const f of [...$("upload").files]) {
      $("sent").textContent = marked(`Uploading ${f.name}…`);
      try {
        await ask("PUT", where("file", sandbox, inside(dir, f.name)), f, uploadTime);
      } catch (e) {
        $("sent").textContent = marked(`${f.name} was not uploaded: ${e.message}`);
        $("upload").value = "";
        return;
      }
    }
    $("upload").value = "";
    $("sent").textContent = "";
    if (page.here()) files(sandbox, dir, page);
  };
}
