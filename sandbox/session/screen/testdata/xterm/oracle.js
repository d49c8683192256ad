// A terminal of xterm.js without a window, for the screen model to be compared with.
//
// It reads requests on stdin, each of an op, two sizes and a length, big-endian, and that many bytes:
//
//   op (1 byte)  columns (2 bytes)  rows (2 bytes)  length (4 bytes)  data
//
//   n  a new terminal of that size; data is how many lines it keeps that scroll off, in decimal, or empty
//   w  the program in it prints data
//   r  its size changes
//   s  prints what it shows, as one line of JSON
//   h  prints the lines that it keeps, as one line of JSON; data is how many of the first ones are left out, in decimal, or empty
//   u  prints the width of every character as one line of JSON: runs of [first, width]
//
// Styles are numbered within one answer; cells beyond the last one that is not a blank in the default style are left out.
'use strict';

const { Terminal } = require('@xterm/headless');
const { Unicode11Addon } = require('@xterm/addon-unicode11');

let term;

function start(cols, rows, scrollback) {
  term?.dispose();
  term = new Terminal({
    cols, rows, scrollback, allowProposedApi: true, logLevel: 'off', windowOptions: { getWinSizeChars: true },
    vtExtensions: { kittyKeyboard: false },
  });
  term.loadAddon(new Unicode11Addon());
  term.unicode.activeVersion = '11';
  term.replies = '';
  term.onData((data) => { term.replies += data; });
}

// color is the number that package screen has for a colour.
function color(mode, value) {
  switch (mode) {
    case 0: return 0;
    case 0x1000000: case 0x2000000: return (1 << 24) | value;
    default: return (2 << 24) | value;
  }
}

// style is the fields of a screen.Style: colours of text, background and underline, attributes, form of the underline.
function style(cell) {
  const attr = [cell.isBold(), cell.isDim(), cell.isItalic(), cell.isBlink(), cell.isInverse(), cell.isInvisible(),
    cell.isStrikethrough(), cell.isOverline()].reduce((bits, on, i) => bits | (on ? 1 << i : 0), 0);
  const underline = cell.isUnderline() ? cell.getUnderlineStyle() : 0;
  // SGR 59 stores -1, which then reads as white: no test asks for that colour.
  const own = cell.extended.underlineColor;
  const mode = own & 0x3000000;
  return [color(cell.getFgColorMode(), cell.getFgColor()), color(cell.getBgColorMode(), cell.getBgColor()),
    mode === 0 || own === 0x3ffffff ? 0 : color(mode, mode === 0x3000000 ? own & 0xffffff : own & 0xff), attr, underline];
}

function line(buffer, y, styles) {
  const line = buffer.getLine(y);
  const text = [], style_ = [], width = [];
  for (let x = 0; x < Math.min(line.length, term.cols); x++) {
    const cell = line.getCell(x);
    const key = style(cell).join();
    if (!styles.has(key)) styles.set(key, styles.size);
    text.push(cell.getWidth() === 0 ? '' : cell.getChars() || ' ');
    style_.push(styles.get(key));
    width.push(cell.getWidth());
  }
  let n = text.length;
  while (n > 0 && text[n - 1] === ' ' && style_[n - 1] === 0) n--;
  return { text: text.slice(0, n), style: style_.slice(0, n), width: width.slice(0, n) };
}

function show() {
  const { _core: core, buffer: { active }, modes } = term;
  const styles = new Map([['0,0,0,0,0', 0]]);
  const lines = [], wrapped = [];
  for (let y = 0; y < term.rows; y++) {
    lines.push(line(active, active.baseY + y, styles));
    wrapped.push(active.getLine(active.baseY + y + 1)?.isWrapped ?? false);
  }
  return {
    cols: term.cols, rows: term.rows, x: active.cursorX, y: active.cursorY, lines, wrapped,
    styles: [...styles.keys()].map((key) => key.split(',').map(Number)),
    alternate: active.type === 'alternate', visible: !core.coreService.isCursorHidden,
    mouse: modes.mouseTrackingMode, encoding: core.coreMouseService.activeEncoding,
    top: core.buffer.scrollTop, bottom: core.buffer.scrollBottom,
    appCursor: modes.applicationCursorKeysMode, appKeypad: modes.applicationKeypadMode, autoWrap: modes.wraparoundMode,
    paste: modes.bracketedPasteMode, focus: modes.sendFocusMode, insert: modes.insertMode, origin: modes.originMode,
    synchronized: modes.synchronizedOutputMode, replies: term.replies,
  };
}

function kept(from) {
  const { buffer: { active } } = term;
  const styles = new Map([['0,0,0,0,0', 0]]);
  const lines = [];
  for (let y = from; y < active.baseY; y++) lines.push(line(active, y, styles));
  return { lines, styles: [...styles.keys()].map((key) => key.split(',').map(Number)) };
}

function widths() {
  const runs = [];
  for (let c = 0xa0, last = -1; c <= 0x10ffff; c++) {
    const width = term._core.unicodeService.wcwidth(c);
    if (width !== last) runs.push([c, width]);
    last = width;
  }
  return runs;
}

const answer = (value) => process.stdout.write(JSON.stringify(value) + '\n');

let input = Buffer.alloc(0);
process.stdin.on('data', (chunk) => {
  input = Buffer.concat([input, chunk]);
  while (input.length >= 9 && input.length >= 9 + input.readUInt32BE(5)) {
    const end = 9 + input.readUInt32BE(5);
    const cols = input.readUInt16BE(1), rows = input.readUInt16BE(3), data = input.subarray(9, end);
    switch (String.fromCharCode(input[0])) {
      case 'n': start(cols, rows, Number(data.toString())); break;
      case 'w': term._core.writeSync(data); break;
      case 'r': term.resize(cols, rows); break;
      case 's': answer(show()); break;
      case 'h': answer(kept(Number(data.toString()))); break;
      case 'u': answer(widths()); break;
    }
    input = input.subarray(end);
  }
});
