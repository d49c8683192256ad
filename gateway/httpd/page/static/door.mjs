// The way to the daemon: requests and sockets with this page's half of the token. The other half is a cookie that no script reads.

const stored = "sandboxd";

export const login = {
  get: () => JSON.parse(localStorage.getItem(stored) ?? "null"),
  set: (key) => localStorage.setItem(stored, JSON.stringify(key)),
  clear: () => localStorage.removeItem(stored),
};

// Problem is what the daemon answered instead.
export class Problem extends Error {
  constructor(status, body) {
    super([body?.detail ?? "the daemon does not answer", body?.hint].filter(Boolean).join("; "));
    this.status = status;
  }
}

export async function call(method, path, body) {
  const headers = { "X-Sandboxd-Key": login.get()?.key ?? "" };
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch("/page/" + path, { method, headers, body: body && JSON.stringify(body) });
  } catch {
    throw new Problem(0);
  }
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => null));
  return answer.status === 204 ? null : answer.json();
}

// Codes with which a socket closes.
export const closed = { failed: 4400, token: 4401 };

// open opens a socket. on has bytes(Uint8Array), said(object) and closed(code, reason).
export function open(path, on) {
  const url = new URL("/page/" + path, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  const socket = new WebSocket(url, ["sandboxd.page", "key." + (login.get()?.key ?? "none")]);
  socket.binaryType = "arraybuffer";
  socket.onmessage = (e) => (typeof e.data === "string" ? on.said(JSON.parse(e.data)) : on.bytes(new Uint8Array(e.data)));
  socket.onclose = (e) => on.closed(e.code, e.reason);
  const send = (data) => socket.readyState === WebSocket.OPEN && socket.send(data);
  const piece = 32 << 10; // the daemon takes no larger frames
  return {
    say: (object) => send(JSON.stringify(object)),
    type: (bytes) => {
      for (let at = 0; at < bytes.length; at += piece) send(bytes.subarray(at, at + piece));
    },
    close: () => {
      socket.onmessage = socket.onclose = null;
      socket.close();
    },
  };
}
