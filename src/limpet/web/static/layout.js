// Where sites and nodes stand on the map. The same network is laid out alike each time.

const GOLDEN = Math.PI * (3 - Math.sqrt(5));
export const SPACING = 40;

const has = (node, role) => node[4].includes(role);

/** Sites as {name, x, y, r, nodes}, the cloud in the middle; each node gets x and y of `points`. */
export function layOut(nodes, aspect) {
  const bySite = new Map();
  nodes.forEach((node, place) => {
    if (!bySite.has(node[2])) bySite.set(node[2], []);
    bySite.get(node[2]).push(place);
  });
  const sites = [...bySite].map(([name, members]) => {
    members.sort((a, b) => rank(nodes[a]) - rank(nodes[b]) || (nodes[a][1] < nodes[b][1] ? -1 : 1));
    return { name, nodes: members, r: SPACING * (0.62 * Math.sqrt(members.length) + 0.62), x: 0, y: 0, cloud: members.some((m) => has(nodes[m], "cloud")) };
  });
  sites.sort((a, b) => b.cloud - a.cloud || b.nodes.length - a.nodes.length || (a.name < b.name ? -1 : 1));
  const wide = Math.sqrt(Math.min(2.2, Math.max(0.45, aspect)));
  let turn = 0;
  sites.forEach((site, i) => {
    for (turn = Math.floor(turn * 0.7); ; turn += 1) {
      const out = 16 * Math.sqrt(turn);
      site.x = out * Math.cos(turn * GOLDEN) * wide;
      site.y = (out * Math.sin(turn * GOLDEN)) / wide;
      if (sites.slice(0, i).every((other) => Math.hypot(site.x - other.x, site.y - other.y) > site.r + other.r + gap(i, site, other))) break;
    }
  });
  const points = new Array(nodes.length);
  for (const site of sites) {
    const n = site.nodes.length;
    site.nodes.forEach((place, i) => {
      const out = n === 1 ? 0 : SPACING * 0.62 * Math.sqrt(i + 0.5) * (n < 7 ? 1.12 : 1);
      const angle = n < 7 ? (i * 2 * Math.PI) / n - Math.PI / 2 : i * GOLDEN;
      const ring = n > 1 && n < 7 ? SPACING * 0.3 * (n / 2.4 + 1) : out;
      points[place] = { x: site.x + ring * Math.cos(angle), y: site.y + ring * Math.sin(angle), site };
    });
  }
  return { sites, points };
}

const gap = (i, site, other) => (site.cloud !== other.cloud && i < 40 ? SPACING * 1.5 : SPACING * 0.55);

function rank(node) {
  return has(node, "cloud") ? 0 : has(node, "relay") ? 1 : 2;
}
