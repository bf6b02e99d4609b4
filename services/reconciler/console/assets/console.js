// What moves on a page without htmx: the live picture, countdowns, and a question before
// something is discarded. Everything else works without a script.
"use strict";

// morph makes old look like fresh and touches only what differs, so that what has the
// focus keeps it.
function morph(old, fresh) {
  const before = Array.from(old.childNodes);
  const after = Array.from(fresh.childNodes);
  after.forEach((node, i) => {
    const was = before[i];
    if (!was) {
      old.appendChild(node);
    } else if (was.nodeType !== node.nodeType || was.nodeName !== node.nodeName) {
      was.replaceWith(node);
    } else if (was.nodeType === Node.ELEMENT_NODE) {
      for (const a of Array.from(was.attributes)) if (!node.hasAttribute(a.name)) was.removeAttribute(a.name);
      for (const a of Array.from(node.attributes)) if (was.getAttribute(a.name) !== a.value) was.setAttribute(a.name, a.value);
      morph(was, node);
    } else if (was.nodeValue !== node.nodeValue) {
      was.nodeValue = node.nodeValue;
    }
  });
  before.slice(after.length).forEach((node) => node.remove());
}

function stream(picture) {
  const live = document.getElementById("live");
  const source = new EventSource(picture.dataset.stream);
  source.addEventListener("pipeline", (event) => {
    const fresh = new DOMParser().parseFromString("<body>" + event.data, "text/html").body;
    morph(picture, fresh);
    live.textContent = "live";
    document.body.classList.remove("stale");
  });
  source.addEventListener("error", () => { // the browser tries again by itself
    live.textContent = "reconnecting";
    document.body.classList.add("stale");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => stream(picture), 3000);
  });
  window.addEventListener("pagehide", () => source.close());
}

function countdowns() {
  for (const element of document.querySelectorAll("[data-due]")) {
    const left = Math.round((Date.parse(element.dataset.due) - Date.now()) / 1000);
    const s = Math.abs(left), parts = s < 3600 ? [Math.floor(s / 60), s % 60] : [Math.floor(s / 3600), Math.floor(s / 60) % 60, s % 60];
    const text = parts.map((n, i) => (i ? String(n).padStart(2, "0") : n)).join(":");
    element.textContent = left < 0 ? "overdue by " + text : text;
    element.classList.toggle("over", left < 0);
  }
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});
document.querySelectorAll("[data-stream]").forEach(stream);
countdowns();
setInterval(countdowns, 1000);
document.addEventListener("htmx:afterSwap", countdowns);
