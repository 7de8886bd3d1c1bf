// What changes, as the server tells it: parts of the page are asked for anew, the map hears of rows.

const BETWEEN_MS = 700, AGAIN_MS = 60000;
let due = 0, asked = -BETWEEN_MS;

function refresh() {
  if (due) return;
  due = setTimeout(() => {
    due = 0;
    asked = performance.now();
    for (const part of document.querySelectorAll("[data-live]")) {
      const open = part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
      const asking = part.querySelector("#act")?.childElementCount;
      if (open || asking) continue;
      const url = part.id === "list" ? location.pathname + location.search : part.dataset.live;
      htmx.ajax("GET", url, { target: `#${part.id}`, select: `#${part.id}`, swap: "outerMorph" });
    }
  }, Math.max(0, asked + BETWEEN_MS - performance.now()));
}

function show(state, words, trouble) {
  const live = document.getElementById("live");
  const what = live.querySelector(".what");
  live.dataset.state = state;
  if (what.textContent !== words) what.textContent = words;
  tell("trouble", trouble);
}

function tell(id, words) {
  if (words === undefined) return;
  const said = document.getElementById(id);
  if (said.textContent !== words) said.textContent = words;
  said.hidden = !words;
}

let stream = null;

function listen() {
  stream?.close();
  stream = new EventSource(`/live?version=${encodeURIComponent(document.body.dataset.version)}`);
  // That it is open says nothing: what is so comes first of all that it tells.
  stream.onmessage = (message) => {
    const told = JSON.parse(message.data);
    document.body.dataset.version = told.version;
    show(told.trouble ? "stale" : "live", told.trouble ? "not answering" : "live", told.trouble);
    tell("cloud", told.cloud);
    if (!told.reload && told.before === undefined) return;
    dispatchEvent(new CustomEvent("limpet-changed", { detail: told }));
    refresh();
  };
  stream.onerror = () => {
    show("stale", "not connected");
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("limpet-theme", root.dataset.theme); } catch { /* storage is off */ }
  dispatchEvent(new Event("limpet-theme"));
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, select, textarea")) return;
  const search = document.querySelector("input[type=search]");
  if (search) {
    event.preventDefault();
    search.focus();
  }
});

addEventListener("pagehide", () => stream.close());
addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
listen();
setInterval(refresh, AGAIN_MS);
