// The map: sites, nodes and the ways between them on a canvas. What it shows is in tables as well.

import { SPACING, layOut } from "./layout.js";
import { Camera } from "./camera.js";

const canvas = document.getElementById("map");
const context = canvas.getContext("2d");
const tip = document.getElementById("tip");
const panel = document.getElementById("panel");
const said = document.getElementById("map-said");
const camera = new Camera(canvas, () => draw(false));
// What is panned is painted once, with a margin around what is seen, and then only moved.
const scene = { canvas: document.createElement("canvas"), x: 0, y: 0, margin: 0 };

const REACHES = ["reached", "unknown", "not allowed", "no path", "lost"];
const DASHES = { relay: [7, 5], "relay-tls": [2, 5], "no path": [2, 6], unknown: [1, 5] };
const SINGLE_LINES = 800;

let net = { nodes: [], pairs: [], me: "", rungs: [] };
let rungs = []; // the best first
let rungWords = {};
let sites = [];
let points = [];
let bundles = [];
let ofNode = [];
let lines = [];
let drawn = {}; // how many pairs of each kind the canvas shows
let colours = {};
let chosen = null; // {node} or {site} or {pair}
let hovered = null;
let found = null;
let due = false;
let changed = true; // what is on the map is other than was painted last
let paintedAt = 0; // zoom
let loading = false;
let again = false;

// What is worse of a pair's two ways.
const badness = (way) => REACHES.indexOf(way[0]) * 1000 + (rungs.indexOf(way[1]) + 1 || rungs.length + 1);
function kind(pair) {
  const known = [pair[2], pair[3]].filter((way) => way[0] !== "unknown");
  const way = known.length < 2 ? known[0] ?? pair[2] : badness(known[0]) >= badness(known[1]) ? known[0] : known[1];
  return way[0] === "reached" ? way[1] : way[0];
}
const weight = (what) => { const at = rungs.indexOf(what); return at >= 0 ? at : rungs.length + REACHES.indexOf(what); };

async function load() {
  if (loading) { again = true; return; }
  loading = true;
  const answer = await fetch("/map.json").catch(() => null);
  loading = false;
  if (again) { again = false; return load(); }
  if (!answer?.ok) return;
  net = await answer.json();
  rungs = net.rungs.map(([rung]) => rung);
  rungWords = Object.fromEntries(net.rungs);
  readColours();
  ({ sites, points } = layOut(net.nodes, canvas.clientWidth / Math.max(1, canvas.clientHeight)));
  arrange();
  chosen = hovered = found = null;
  fit();
}

function arrange() {
  ofNode = net.nodes.map(() => []);
  const between = new Map();
  net.pairs.forEach((pair, place) => {
    ofNode[pair[0]].push(place);
    ofNode[pair[1]].push(place);
    const [a, b] = [points[pair[0]].site, points[pair[1]].site];
    if (a === b) return;
    const key = a.name < b.name ? `${a.name}\n${b.name}` : `${b.name}\n${a.name}`;
    if (!between.has(key)) between.set(key, { a, b, count: 0, kinds: new Map() });
    const bundle = between.get(key);
    // A silent node is red by itself; a line is where the way between two that answer is gone.
    const what = kind(pair);
    if (what === "lost" && (net.nodes[pair[0]][3] === "silent" || net.nodes[pair[1]][3] === "silent")) return;
    bundle.count += 1;
    bundle.kinds.set(what, (bundle.kinds.get(what) ?? 0) + 1);
  });
  bundles = [...between.values()].filter((each) => each.count).map((each) => {
    const most = [...each.kinds].sort((x, y) => y[1] - x[1])[0][0];
    return { ...each, most, worst: each.kinds.has("lost") ? "lost" : each.kinds.has("no path") ? "no path" : most };
  });
}

function fit() {
  if (!sites.length) return draw();
  const box = sites.reduce((b, s) => [Math.min(b[0], s.x - s.r), Math.min(b[1], s.y - s.r - 26), Math.max(b[2], s.x + s.r), Math.max(b[3], s.y + s.r)], [1e9, 1e9, -1e9, -1e9]);
  camera.fit(box, [58, 46]);
}

function readColours() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const read = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  colours = { ...Object.fromEntries(rungs.map((rung) => [rung, read(rung)])), relay: read("relay"), lost: read("lost"), "no path": read("lost"), unknown: read("none"), "not allowed": read("none"), text: read("text"), muted: read("muted"), site: read("site"), line: read("line"), surface: read("surface"), answers: read("well"), silent: read("lost"), focus: read("focus"), accent: read("accent") };
  probe.remove();
}

function draw(other = true) {
  changed ||= other;
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    paint();
  });
}

function paint() {
  const { k, x, y, ratio } = camera;
  const panned = !changed && k === paintedAt;
  [changed, paintedAt] = [false, k];
  if (!panned) {
    scene.margin = 0;
    paintScene(context, 0);
  } else {
    if (Math.max(Math.abs(x - scene.x), Math.abs(y - scene.y)) > scene.margin || !scene.margin) keepScene();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(scene.canvas, Math.round((x - scene.x - scene.margin) * ratio), Math.round((y - scene.y - scene.margin) * ratio));
  }
  const pairs = JSON.stringify(drawn);
  if (canvas.dataset.pairs !== pairs) canvas.dataset.pairs = pairs;
  if (!canvas.dataset.drawn && sites.length) {
    canvas.dataset.drawn = "yes";
    performance.mark("limpet-drawn");
  }
}

function keepScene() {
  const { x, y, ratio, width, height } = camera;
  const margin = Math.ceil(Math.min(width, height) / 4);
  Object.assign(scene, { x, y, margin });
  scene.canvas.width = Math.round((width + 2 * margin) * ratio);
  scene.canvas.height = Math.round((height + 2 * margin) * ratio);
  paintScene(scene.canvas.getContext("2d"), margin);
}

function paintScene(c, margin) {
  const { k, ratio, width, height } = camera;
  const [x, y] = [camera.x + margin, camera.y + margin];
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, width + 2 * margin, height + 2 * margin);
  c.setTransform(ratio * k, 0, 0, ratio * k, ratio * x, ratio * y);
  const seen = camera.view(80 + margin);
  const inView = (p, r = 0) => p.x + r > seen[0] && p.x - r < seen[2] && p.y + r > seen[1] && p.y - r < seen[3];
  for (const site of sites) {
    if (!inView(site, site.r)) continue;
    c.beginPath();
    c.arc(site.x, site.y, site.r, 0, 7);
    c.fillStyle = colours.site;
    c.fill();
    c.lineWidth = (chosen?.site === site ? 2.5 : 1) / k;
    c.strokeStyle = chosen?.site === site ? colours.focus : colours.line;
    c.stroke();
  }
  drawn = {};
  paintWays(c, k);
  paintNodes(c, k, inView);
  paintNames(c, ratio, inView, x, y);
}

function paintWays(c, k) {
  const focus = chosen?.node ?? hovered?.node;
  const single = net.pairs.length <= SINGLE_LINES;
  lines = [];
  const faint = focus !== undefined || chosen?.site || chosen?.pair !== undefined;
  if (single) {
    const places = net.pairs.map((_, place) => place);
    const bright = (place) => !faint || place === chosen?.pair || (net.pairs[place][0] === focus || net.pairs[place][1] === focus) || (chosen?.site && (points[net.pairs[place][0]].site === chosen.site || points[net.pairs[place][1]].site === chosen.site));
    if (faint) stroke(c, k, places.filter((p) => !bright(p)), 0.12, 1.2);
    stroke(c, k, places.filter(bright), 0.85, 1.8);
    return;
  }
  const busy = Math.min(0.45, 7 / Math.sqrt(bundles.length + 1));
  for (const bundle of bundles) {
    const bad = bundle.worst === "lost" || bundle.worst === "no path";
    const bright = !faint || bundle.a === chosen?.site || bundle.b === chosen?.site;
    c.globalAlpha = !bright ? 0.05 : faint || bad ? 0.55 : busy;
    c.beginPath();
    bend(c, bundle.a, bundle.b);
    c.setLineDash((DASHES[bundle.worst] ?? []).map((d) => d / k));
    c.strokeStyle = colours[bundle.worst];
    c.lineWidth = Math.min(4.5, 0.6 + Math.log2(1 + bundle.count) * 0.45) / k;
    c.stroke();
    for (const [what, count] of bundle.kinds) drawn[what] = (drawn[what] ?? 0) + count;
  }
  c.setLineDash([]);
  c.globalAlpha = 1;
  const shown = focus !== undefined ? ofNode[focus] : chosen?.pair !== undefined ? [chosen.pair] : [];
  stroke(c, k, shown, 0.9, 1.6);
}

function stroke(c, k, places, alpha, width) {
  const byKind = new Map();
  for (const place of places) {
    const what = kind(net.pairs[place]);
    if (!byKind.has(what)) byKind.set(what, []);
    byKind.get(what).push(place);
  }
  for (const [what, group] of [...byKind].sort((a, b) => weight(a[0]) - weight(b[0]))) {
    c.beginPath();
    for (const place of group) {
      const [a, b] = [points[net.pairs[place][0]], points[net.pairs[place][1]]];
      if (a.site === b.site) { c.moveTo(a.x, a.y); c.lineTo(b.x, b.y); } else bend(c, a, b);
      if (alpha > 0.5) lines.push(place);
      // One between sites was counted with the line that all of its sites' pairs are drawn in.
      if (a.site === b.site || net.pairs.length <= SINGLE_LINES) drawn[what] = (drawn[what] ?? 0) + 1;
    }
    c.setLineDash((DASHES[what] ?? []).map((d) => d / k));
    c.globalAlpha = alpha;
    c.strokeStyle = colours[what] ?? colours.unknown;
    c.lineWidth = (what === "lost" ? width + 1.4 : width) / k;
    c.stroke();
  }
  if (chosen?.pair !== undefined && places.includes(chosen.pair)) {
    const [a, b] = net.pairs[chosen.pair].map((p) => points[p]);
    c.beginPath();
    if (a.site === b.site) { c.moveTo(a.x, a.y); c.lineTo(b.x, b.y); } else bend(c, a, b);
    c.setLineDash([]);
    c.globalAlpha = 0.25;
    c.lineWidth = 9 / k;
    c.stroke();
  }
  c.setLineDash([]);
  c.globalAlpha = 1;
}

const middle = (a, b) => ({ x: (a.x + b.x) / 2 + (b.y - a.y) * 0.09, y: (a.y + b.y) / 2 - (b.x - a.x) * 0.09 });
function bend(c, a, b) {
  const m = middle(a, b);
  c.moveTo(a.x, a.y);
  c.quadraticCurveTo(m.x, m.y, b.x, b.y);
}

const radius = (k) => Math.max(2 / k, Math.min(9, 12 / k));

function paintNodes(c, k, inView) {
  const r = radius(k);
  const groups = { answers: [], silent: [], unknown: [] };
  net.nodes.forEach((node, place) => { if (inView(points[place], r)) groups[node[3]]?.push(place); });
  for (const [state, places] of Object.entries(groups)) {
    c.beginPath();
    for (const place of places) {
      const p = points[place];
      const cloud = net.nodes[place][4].includes("cloud");
      const s = cloud ? r * 1.25 : r;
      if (cloud) c.roundRect(p.x - s, p.y - s, 2 * s, 2 * s, s * 0.45);
      else { c.moveTo(p.x + s, p.y); c.arc(p.x, p.y, s, 0, 7); }
    }
    c.fillStyle = state === "unknown" ? colours.surface : colours[state];
    c.fill();
    c.lineWidth = Math.min(2, r * k * 0.3) / k;
    c.strokeStyle = state === "unknown" ? colours.unknown : colours.site;
    c.stroke();
  }
  net.nodes.forEach((node, place) => {
    if (!node[4].includes("relay") || !inView(points[place], r)) return;
    const p = points[place];
    c.beginPath();
    c.arc(p.x, p.y, r * 1.7, 0, 7);
    c.lineWidth = 1.6 / k;
    c.strokeStyle = colours.relay;
    c.stroke();
  });
  for (const [place, colour] of [[hovered?.node, colours.muted], [chosen?.node, colours.focus], [found, colours.focus]]) {
    if (place === undefined || place === null) continue;
    c.beginPath();
    c.arc(points[place].x, points[place].y, r + 6 / k, 0, 7);
    c.lineWidth = 2.5 / k;
    c.strokeStyle = colour;
    c.stroke();
  }
}

function paintNames(c, ratio, inView, x, y) {
  const { k } = camera;
  const font = getComputedStyle(canvas).fontFamily;
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.textAlign = "center";
  const write = (text, px, py, colour, size, bold) => {
    c.font = `${bold ? 620 : 450} ${size}px ${font}`;
    c.lineWidth = 3.5;
    c.lineJoin = "round";
    c.strokeStyle = colours.surface;
    c.strokeText(text, px, py);
    c.fillStyle = colour;
    c.fillText(text, px, py);
  };
  const names = k * SPACING > 54;
  net.nodes.forEach((node, place) => {
    const p = points[place];
    const marked = place === hovered?.node || place === chosen?.node || place === found;
    if ((names || marked) && inView(p)) write(node[0] === net.me ? `${node[1]} (here)` : node[1], p.x * k + x, p.y * k + y + radius(k) * k * 1.5 + 13, colours.text, 12, marked);
  });
  const taken = [];
  for (const site of sites) {
    if (!inView(site, site.r)) continue;
    const label = site.name || "no site";
    const [px, py] = [site.x * k + x, (site.y - site.r) * k + y - 7];
    const half = label.length * 4 + 4;
    if (site !== chosen?.site && taken.some(([ox, oy, oh]) => Math.abs(ox - px) < oh + half && Math.abs(oy - py) < 15)) continue;
    taken.push([px, py, half]);
    write(label, px, py, colours.muted, 12.5, true);
  }
}

// What is where

function at(px, py) {
  const p = camera.world(px, py);
  const reach = Math.max(radius(camera.k), 11 / camera.k);
  let best = null;
  points.forEach((point, place) => {
    const d = Math.hypot(point.x - p.x, point.y - p.y);
    if (d < reach && (!best || d < best.d)) best = { d, node: place };
  });
  if (best && camera.k * SPACING > 12) return { node: best.node };
  for (const place of lines) {
    if (distance(p, net.pairs[place]) < 6 / camera.k) return { pair: place };
  }
  const site = sites.find((each) => Math.hypot(each.x - p.x, each.y - p.y) < each.r);
  return site ? { site } : null;
}

function distance(p, pair) {
  const [a, b] = [points[pair[0]], points[pair[1]]];
  const m = a.site === b.site ? { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 } : middle(a, b);
  let least = Infinity;
  let from = a;
  for (let i = 1; i <= 10; i += 1) {
    const t = i / 10;
    const to = { x: (1 - t) ** 2 * a.x + 2 * t * (1 - t) * m.x + t * t * b.x, y: (1 - t) ** 2 * a.y + 2 * t * (1 - t) * m.y + t * t * b.y };
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    const s = Math.max(0, Math.min(1, ((p.x - from.x) * dx + (p.y - from.y) * dy) / (dx * dx + dy * dy || 1)));
    least = Math.min(least, Math.hypot(p.x - from.x - s * dx, p.y - from.y - s * dy));
    from = to;
  }
  return least;
}

// In words

const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const way = (each) => (each[0] === "reached" ? rungWords[each[1]] ?? each[1] : each[0]) + (each[2] == null ? "" : `, ${each[2] < 10 ? each[2].toPrecision(2) : Math.round(each[2])} ms`) + (each[3] ? `, ${Math.ceil(each[3] * 100)} % lost` : "");
function words(what) {
  if (!what) return "";
  if (what.node !== undefined) {
    const node = net.nodes[what.node];
    const counts = new Map();
    for (const place of ofNode[what.node]) counts.set(kind(net.pairs[place]), (counts.get(kind(net.pairs[place])) ?? 0) + 1);
    const ways = [...counts].sort((a, b) => weight(a[0]) - weight(b[0])).map(([each, n]) => `${n} by ${rungWords[each] ?? each}`).join(", ");
    return `${node[1]}${node[2] ? ` in ${node[2]}` : ""}: ${node[3]}${node[4].length ? `, ${node[4].join(", ")}` : ""}${node[5] == null ? "" : `, ${counted(node[5], "pod")}`}${ways ? `\n${ways}` : ""}`;
  }
  if (what.pair !== undefined) {
    const pair = net.pairs[what.pair];
    return `${net.nodes[pair[0]][1]} – ${net.nodes[pair[1]][1]}\nthere: ${way(pair[2])}\nback: ${way(pair[3])}`;
  }
  const silent = what.site.nodes.filter((place) => net.nodes[place][3] === "silent").length;
  return `${what.site.name || "no site"}: ${counted(what.site.nodes.length, "node")}${silent ? `, ${silent} silent` : ""}`;
}

// Choosing

function choose(what, { open = true } = {}) {
  chosen = what;
  found = null;
  said.textContent = words(what);
  draw();
  if (!open) return;
  if (!what) return close();
  const url = what.node !== undefined ? `/nodes/${encodeURIComponent(net.nodes[what.node][0])}`
    : what.pair !== undefined ? `/pairs/${encodeURIComponent(net.nodes[net.pairs[what.pair][0]][0])}/${encodeURIComponent(net.nodes[net.pairs[what.pair][1]][0])}`
      : `/sites/${encodeURIComponent(what.site.name || "-")}`;
  return show(url);
}

async function show(url) {
  const answer = await fetch(url, { headers: { "HX-Request": "true" } });
  if (answer.status === 401) return location.assign("/enter");
  panel.innerHTML = await answer.text();
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "icon close", textContent: "✕" });
  button.setAttribute("aria-label", "Close");
  button.addEventListener("click", () => choose(null));
  panel.prepend(button);
  if (panel.hidden) { panel.hidden = false; panel.scrollTop = 0; }
  htmx.process(panel);
}

function close() {
  if (panel.hidden) return;
  const back = panel.contains(document.activeElement);
  panel.hidden = true;
  panel.replaceChildren();
  if (back) canvas.focus();
}

panel.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='/nodes/'], a[href^='/pairs/'], a[href^='/sites/']");
  if (!link || event.metaKey || event.ctrlKey || link.search) return;
  event.preventDefault();
  const parts = link.pathname.split("/").map(decodeURIComponent);
  const place = (uid) => net.nodes.findIndex((node) => node[0] === uid);
  if (parts[1] === "nodes" && place(parts[2]) >= 0) choose({ node: place(parts[2]) });
  else if (parts[1] === "pairs") {
    const ends = [place(parts[2]), place(parts[3])];
    const pair = net.pairs.findIndex((each) => ends.includes(each[0]) && ends.includes(each[1]));
    if (pair >= 0) choose({ pair }); else show(link.pathname);
  } else {
    const site = sites.find((each) => each.name === (parts[2] === "-" ? "" : parts[2]));
    if (site) choose({ site });
  }
});

camera.onTap = (px, py) => choose(at(px, py));
camera.onHover = (px, py) => {
  const what = px === null ? null : at(px, py);
  const same = what?.node === hovered?.node && what?.pair === hovered?.pair && what?.site === hovered?.site;
  hovered = what;
  tip.hidden = !what || (what.site && !what.site.name);
  canvas.style.cursor = what ? "pointer" : "";
  if (what) {
    if (!same) tip.textContent = words(what);
    tip.style.transform = `translate(${Math.min(px + 14, camera.width - tip.offsetWidth - 8)}px, ${Math.min(py + 14, camera.height - tip.offsetHeight - 8)}px)`;
  }
  if (!same) draw();
};

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
canvas.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const step = STEPS[event.key];
  if (step) next(step);
  else if (event.key === "+" || event.key === "=") camera.zoom(1.4);
  else if (event.key === "-") camera.zoom(1 / 1.4);
  else if (event.key === "0") fit();
  else if (event.key === "Enter" && chosen) choose(chosen)?.then(() => panel.focus());
  else if (event.key === "Escape") choose(null);
  else return;
  event.preventDefault();
});
addEventListener("keydown", (event) => { if (event.key === "Escape" && panel.contains(document.activeElement)) choose(null); });

function next([dx, dy]) {
  if (!points.length) return;
  const here = chosen?.node ?? found;
  if (here === undefined || here === null) return choose({ node: Math.max(0, net.nodes.findIndex((n) => n[0] === net.me)) }, { open: false });
  const from = points[here];
  let best = null;
  points.forEach((p, place) => {
    const [x, y] = [p.x - from.x, p.y - from.y];
    const along = x * dx + y * dy;
    if (along <= 1) return;
    const cost = along + 2.2 * Math.abs(x * dy - y * dx);
    if (!best || cost < best.cost) best = { cost, node: place };
  });
  if (!best) return;
  choose({ node: best.node }, { open: false });
  camera.bring(points[best.node]);
}

for (const button of document.querySelectorAll("[data-map]")) {
  button.addEventListener("click", () => ({ in: () => camera.zoom(1.5), out: () => camera.zoom(1 / 1.5), all: fit })[button.dataset.map]());
}

const search = document.getElementById("map-search");
search.addEventListener("input", () => {
  const text = search.elements.q.value.trim().toLowerCase();
  const hits = text ? net.nodes.flatMap((n, place) => (n[1].toLowerCase().includes(text) || n[2].toLowerCase().includes(text) ? [place] : [])) : [];
  const exact = hits.find((place) => net.nodes[place][1].toLowerCase() === text);
  found = exact ?? hits[0] ?? null;
  document.getElementById("map-found").textContent = text ? `${hits.length} found${found === null ? "" : `: ${net.nodes[found][1]}`}` : "";
  if (found !== null) camera.bring(points[found], 1.4);
  draw();
});
search.addEventListener("submit", (event) => {
  event.preventDefault();
  if (found !== null) choose({ node: found });
});

// What changes

addEventListener("limpet-changed", (event) => {
  const told = event.detail;
  // Rows are by place: they fit what they were made against, and nothing else.
  if (told.reload || loading || told.before !== net.version) return load();
  net.version = told.version;
  for (const [place, row] of Object.entries(told.nodes ?? {})) net.nodes[place] = row;
  for (const [place, row] of Object.entries(told.pairs ?? {})) net.pairs[place] = row;
  if (Object.keys(told.pairs ?? {}).length) arrange();
  draw();
});
addEventListener("limpet-theme", () => { readColours(); draw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
new ResizeObserver(() => { const first = !camera.width; camera.measure(); if (!first) draw(); else fit(); }).observe(canvas);
readColours();
load();
