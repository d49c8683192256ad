// Lets xterm.js draw under a policy that blocks inline <style> elements and style attributes. Both are
// set through the CSSOM instead, which the policy allows. Load this before xterm.js draws.

// sheetElement replaces a <style> element: its text is a style sheet of the document until the element
// is removed. The policy blocks even an empty <style>.
function sheetElement() {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const element = create("data");
  element.hidden = true;
  Object.defineProperty(element, "textContent", {
    get: () => "",
    set: (text) => sheet.replaceSync(text),
  });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}

const create = document.createElement.bind(document);
document.createElement = (name, options) => (name === "style" ? sheetElement() : create(name, options));

// xterm.js sets the colours of cells by setAttribute("style", …).
HTMLSpanElement.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
};
