// The web servers in a running sandbox, each in a browser tab of its own.

import { call } from "./daemon.mjs";
import { $, button, make } from "./dom.mjs";

const where = (sandbox, port = "") => `ports/${encodeURIComponent(sandbox)}${port && "/" + port}`;

// ports lists the ports on which programs of a sandbox listen. page has here(), which is false when
// something else is shown by then, and problem(error).
export async function ports(sandbox, page) {
  $("ports").hidden = false;
  $("listening").replaceChildren();
  const open = async (port) => {
    try {
      const a = make("a");
      a.href = (await call("POST", where(sandbox, port))).url;
      a.target = "_blank";
      a.rel = "noopener noreferrer";
      a.click();
    } catch (e) {
      if (page.here()) page.problem(e);
    }
  };
  $("other").onsubmit = (e) => {
    e.preventDefault();
    open($("port").value);
  };
  let found;
  try {
    found = (await call("GET", where(sandbox))).ports;
  } catch (e) {
    return page.here() && page.problem(e);
  }
  if (!page.here()) return;
  $("none").hidden = found.length > 0;
  $("listening").replaceChildren(...found.map((port) => {
    const li = make("li");
    const b = button("", () => open(port));
    b.className = "row";
    b.append(make("span", "title", `Open port ${port}`));
    li.append(b);
    return li;
  }));
  $("listening").querySelector("button")?.focus();
}
