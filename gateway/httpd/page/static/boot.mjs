// Loads the page, and retries after a failure, so that a lost connection does not leave an empty page.
//
// A retry uses another name for the module and its imports, because browsers remember a failure by
// name. The daemon serves each file also below ~1/, ~2/ and so on.

const words = document.getElementById("loading");
for (let failures = 0; ; failures++) {
  try {
    await import((failures ? `./~${failures}/` : "./") + "page.mjs");
    words.hidden = true;
    break;
  } catch (problem) {
    words.textContent = "The page did not load completely; trying again…";
    console.error(problem);
  }
  await new Promise((done) => setTimeout(done, Math.min(250 * 2 ** failures, 8000)));
}
