// Loads the page, and tries again where that fails: a connection may be lost at any moment, and would leave an empty page behind.
//
// What could not be loaded is asked for by another name, also what it imports: browsers remember by its name that a module failed. The daemon
// serves each file below ~1/, ~2/ and so on, too.

const words = document.getElementById("loading");
for (let failures = 0; ; failures++) {
  try {
    await import((failures ? `./~${failures}/` : "./") + "page.mjs");
    words.hidden = true;
    break;
  } catch (problem) {
    words.textContent = "This page could not be loaded whole; trying again…";
    console.error(problem);
  }
  await new Promise((done) => setTimeout(done, Math.min(250 * 2 ** failures, 8000)));
}
