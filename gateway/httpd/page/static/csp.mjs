// What lets xterm.js draw under a policy that refuses <style> elements and style attributes in text: both are set through the CSSOM, which
// the policy allows. It has to be loaded before xterm.js draws.

// sheetElement stands in for a <style> element: its text is a sheet of the document, for as long as it is not removed. Also an empty <style>
// would be refused.
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

// xterm.js gives cells colours of their own by setAttribute("style", …).
HTMLSpanElement.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
};
