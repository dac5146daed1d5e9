// Makes the pages of the lab live: forms are sent without a reload, runs are asked for until they
// are over, lanes are drawn. Tables come from the server as they are; without this file the same
// forms work by themselves.

const LIVE = 200; // ms between two looks at a run that goes on
const LOST = 2000; // ms until the next try when the server did not answer

const main = document.querySelector("main");
const result = document.getElementById("result");
const host = document.getElementById("lanes");
const message = document.getElementById("message");
const status = document.getElementById("status");

const drawLanes = await import(main.dataset.lanesModule).then(
  (lanes) => lanes.drawLanes,
  () => null, // the tables say the same
);

let address = result.dataset.runUrl ?? null;
let timer = null;
let shown = null; // what the server sent last: what is the same is left alone
let turn = 0; // answers to older questions are dropped

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function complain(text) {
  say(message, text);
  message.hidden = !text;
}

function replaceResult(html) {
  if (shown === html) return;
  shown = html;
  const focused = result.contains(document.activeElement) ? document.activeElement.id : "";
  const scrolled = [...result.querySelectorAll(".scroll")].map((it) => [it.id, it.scrollTop, it.scrollLeft]);
  result.innerHTML = html;
  for (const [id, top, left] of scrolled) {
    document.getElementById(id)?.scrollTo(left, top);
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function show(run) {
  address = run.url;
  replaceResult(run.html);
  say(status, run.over ? main.dataset.over : main.dataset.running);
  if (drawLanes) {
    host.hidden = run.lanes.length === 0;
    const label = main.dataset.lanesLabel;
    drawLanes(host, { now: run.now, span: run.span, lanes: run.lanes, label });
  }
  if (!run.over) timer = setTimeout(look, LIVE);
}

// Sends a request and shows the run that is the answer; null when it was refused or overtaken.
async function ask(url, options = {}) {
  clearTimeout(timer);
  const mine = ++turn;
  try {
    const response = await fetch(url, {
      ...options,
      cache: "no-store",
      headers: { Accept: "application/json" },
    });
    const answer = await response.json();
    if (mine !== turn) return null;
    if (!response.ok) {
      complain(answer.error);
      // A refused action changes nothing: what was shown goes on, unless it is gone.
      if (options.method && address) timer = setTimeout(look, LIVE);
      return null;
    }
    if (options.method) complain("");
    show(answer);
    return answer;
  } catch {
    if (mine !== turn) return null;
    say(status, main.dataset.lost);
    if (address) timer = setTimeout(look, LOST);
    return null;
  }
}

function look() {
  if (document.hidden) {
    document.addEventListener("visibilitychange", look, { once: true });
    return;
  }
  ask(address);
}

for (const form of document.querySelectorAll("form[data-live]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    // Not form.action: that would be the field of this name.
    const url = form.getAttribute("action");
    const run = await ask(url, { method: "POST", body: new FormData(form) });
    if (run) history.replaceState(null, "", run.address);
  });
}

if (address) look();
