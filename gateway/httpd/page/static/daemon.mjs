// Requests and sockets to the daemon, with the page's half of the token. The other half is a cookie that
// scripts cannot read.

const stored = "sandboxd";

let kept = null; // used if the browser has no storage

// login is the page's half of the token: {key, made}, or null.
export const login = {
  get: () => {
    try {
      const had = JSON.parse(localStorage.getItem(stored) ?? "null") ?? kept;
      return /^[0-9a-f]+$/.test(had?.key) ? had : null;
    } catch {
      return kept;
    }
  },
  set: (key) => {
    kept = null;
    try {
      localStorage.setItem(stored, JSON.stringify(key));
    } catch {
      kept = key;
    }
  },
  clear: () => {
    kept = null;
    try {
      localStorage.removeItem(stored);
    } catch {
      // no storage
    }
  },
};

// answerTime is the timeout of an answer in ms. A connection may be lost without notice.
const answerTime = 20000;

// Problem is an error of the daemon.
export class Problem extends Error {
  constructor(status, body) {
    super([body?.detail ?? "the daemon does not answer", body?.hint].filter(Boolean).join("; "));
    this.status = status;
  }
}

// ask sends a request to the daemon, with an object as JSON or a Blob as it is, and waits for ms. It
// throws a Problem; status 0 means that there was no answer.
export async function ask(method, path, body, ms = answerTime) {
  const headers = { "X-Sandboxd-Key": login.get()?.key ?? "" };
  const blob = body instanceof Blob;
  if (body) headers["Content-Type"] = blob ? "application/octet-stream" : "application/json";
  let answer;
  try {
    answer = await fetch("/page/" + path, { method, headers, body: blob ? body : body && JSON.stringify(body), signal: AbortSignal.timeout(ms) });
  } catch {
    throw new Problem(0);
  }
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => null));
  return answer;
}

// call is ask for an answer in JSON.
export async function call(method, path, body, ms) {
  const answer = await ask(method, path, body, ms);
  if (answer.status === 204) return null;
  return answer.json().catch(() => {
    throw new Problem(0); // the answer is incomplete
  });
}

// Close codes of a socket.
export const closed = { failed: 4400, token: 4401 };

// open opens a socket. on has bytes(Uint8Array), said(object) and closed(code, reason). closed is the
// last call, and happens once, unless the page calls close. Its code is 0 if the daemon did not answer,
// and after lost.
export function open(path, on) {
  const url = new URL("/page/" + path, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  const socket = new WebSocket(url, ["sandboxd.page", "key." + (login.get()?.key ?? "none")]);
  socket.binaryType = "arraybuffer";
  const end = () => {
    clearTimeout(slow);
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  };
  const lost = () => {
    end();
    on.closed(0, "");
  };
  const slow = setTimeout(lost, answerTime);
  socket.onopen = () => clearTimeout(slow);
  socket.onmessage = (e) => (typeof e.data === "string" ? on.said(JSON.parse(e.data)) : on.bytes(new Uint8Array(e.data)));
  socket.onclose = (e) => {
    end();
    on.closed(e.code, e.reason);
  };
  const send = (data) => socket.readyState === WebSocket.OPEN && socket.send(data);
  const piece = 32 << 10; // the daemon accepts no larger frames
  return {
    say: (object) => send(JSON.stringify(object)),
    type: (bytes) => {
      for (let at = 0; at < bytes.length; at += piece) send(bytes.subarray(at, at + piece));
    },
    lost, // treat the connection as lost
    close: end,
  };
}
