
// The plots of each case; plots.go, series.go and curves.go document the fields of the
// data.

const data = JSON.parse(document.getElementById("data").textContent);
const cases = new Map(data.cases.map((c) => [c.id, c]));

// Over time: two subjects side by side, three plots each.

const quantities = [
  { field: "bw", label: "goodput", units: [["Gbit/s", 1e-3, 1e4], ["Mbit/s", 1, 0.5], ["kbit/s", 1e3, 0]] },
  { field: "rtt", label: "round trip", units: [["s", 1e-3, 1e4], ["ms", 1, 0.5], ["us", 1e3, 0]] },
  { field: "cwnd", label: "cwnd", units: [["packets", 1, 0]] },
];

function drawTime(box) {
  const c = cases.get(box.dataset.case);
  const shown = firstShown(c);
  const sides = element("div", { className: "sides" });
  box.append(sides, element("p", { className: "hint" },
    "A line is a connection, its colour the congestion control in use. Hover to read, drag to zoom, double-click to see all."));
  const draw = () => {
    sides.replaceChildren();
    const limits = limitsOf(shown.map((i) => c.series[i]));
    shown.forEach((_, side) => sides.append(timeSide(c, shown, side, limits, draw)));
    sides.querySelectorAll(".stack").forEach((stack) => stack.fill());
  };
  draw();
}

// firstShown is the first subject of the case that has points (the baseline
// usually is first) beside the one that learns.
function firstShown(c) {
  if (c.series.length < 2) return [0];
  const learner = c.series.findIndex((r) => c.subjects[r.s].colour === 0);
  return learner > 0 ? [0, learner] : [0, 1];
}

function limitsOf(rounds) {
  const limits = { end: Math.max(...rounds.map((r) => r.n * r.step)) };
  for (const q of quantities) {
    let most = 0;
    for (const r of rounds) for (const l of r.lines) for (const v of l[q.field]) if (v > most) most = v;
    limits[q.field] = most || 1;
  }
  return limits;
}

function timeSide(c, shown, side, limits, draw) {
  const round = c.series[shown[side]];
  const select = element("select", { onchange: () => { shown[side] = Number(select.value); draw(); } });
  select.setAttribute("aria-label", "subject");
  c.series.forEach((r, i) => select.append(element("option", { value: i, selected: i === shown[side] }, c.subjects[r.s].name)));
  const of = round.shown < round.of ? `${round.shown} of ${round.of}` : `${round.of}`;
  const head = element("div", { className: "head" }, select,
    element("span", {}, `round ${round.repeat}, ${of} connection${round.of === 1 ? "" : "s"}`));
  const stack = element("div", { className: "stack" });
  const plots = [];
  const groups = groupsOf(round);
  if (groups.length > 1) groups.forEach((g, i) => head.append(element("span", { className: "key line" + i % 3 }, element("i"), g)));
  for (const cc of [...new Set(round.lines.map((l) => l.cc))].sort()) {
    head.append(key(data.cc[cc] ?? 7, cc || "unknown", (on) => {
      for (const u of plots) round.lines.forEach((l, i) => { if (l.cc === cc) u.setSeries(i + 1, { show: on }); });
    }));
  }
  const group = uPlot.sync(c.id + "-" + side);
  stack.fill = () => quantities.forEach((q, i) => plots.push(timePlot(stack, round, q, limits, group, i === quantities.length - 1)));
  return element("div", {}, head, stack);
}

const groupsOf = (round) => [...new Set(round.lines.map((l) => l.g))].sort();

function timePlot(parent, round, q, limits, group, last) {
  const most = limits[q.field];
  const [unit, factor] = q.units.find(([, , from]) => most >= from);
  const x = Array.from({ length: round.n }, (_, i) => (i + 0.5) * round.step);
  const values = [x, ...round.lines.map((l) => {
    const y = new Array(round.n).fill(null);
    l[q.field].forEach((v, i) => { y[l.at + i] = v === null ? undefined : v * factor; }); // undefined: the line continues across it
    return y;
  })];
  // The more lines at a time, the thinner and paler.
  const density = round.lines.reduce((sum, l) => sum + l.bw.length, 0) / round.n;
  const groups = groupsOf(round);
  const series = round.lines.map((l) => ({
    stroke: () => colour(data.cc[l.cc] ?? 7), width: density > 4 ? 1 : 1.6, alpha: Math.min(1, Math.max(0.3, 8 / density)), dash: dashes[groups.indexOf(l.g) % 3],
    points: { show: l[q.field].length === 1, size: 4 },
  }));
  return plot(parent, {
    height: last ? 170 : 136,
    scales: { x: { time: false, range: (u, low, high) => u.zoomed ? [low, high] : [0, limits.end] }, y: { range: [0, most * factor * 1.06] } },
    axes: [
      axis(last ? "time, s" : undefined, last ? { size: 30 } : { size: 8, values: (u, v) => v.map(() => "") }),
      axis(`${q.label}, ${unit}`, { size: 46 }),
    ],
    series: [{}, ...series],
    focus: { alpha: density > 4 ? 0.12 : 0.3 },
    cursor: { sync: { key: group.key, setSeries: true, scales: ["x", null] }, focus: { prox: 24 } },
    hooks: { setSelect: [(u) => { u.zoomed = u.select.width > 0; }] },
  }, values, (u, i) => {
    const n = nearest(u, i);
    if (n < 0) return;
    const l = round.lines[n - 1];
    const name = `${l.g ? l.g + " " : ""}${l.id}, ${l.cc || "unknown"}:`;
    return [tipLine(data.cc[l.cc] ?? 7, name, `${digits(u.data[n][i])} ${unit}`), tipLine(null, "at", seconds(u.data[0][i]))];
  });
}

// nearest is the series whose value is nearest to the cursor; -1 for none.
function nearest(u, i) {
  let best = -1, least = 40;
  for (let n = 1; n < u.data.length; n++) {
    const v = u.data[n][i];
    if (v === null || v === undefined || !u.series[n].show) continue;
    const distance = Math.abs(u.valToPos(v, "y") - u.cursor.top);
    if (distance < least) [best, least] = [n, distance];
  }
  return best;
}

// curves draws one curve for each subject, with a legend.
function curves(box, c, list, { title, ...options }, values, tip) {
  const head = element("div", { className: "head" });
  if (title) head.append(element("b", {}, title));
  box.append(head);
  const u = plot(box, {
    height: 260, ...options,
    series: [{}, ...list.map((s, i) => ({
      stroke: () => colour(c.subjects[s.s].colour), width: 2, dash: dashes[i % dashes.length], points: { show: false }, spanGaps: true,
    }))],
  }, values, tip);
  list.forEach((s, i) => head.append(key(c.subjects[s.s].colour, c.subjects[s.s].name, (on) => u.setSeries(i + 1, { show: on }))));
}

function drawCDF(box) {
  const c = cases.get(box.dataset.case);
  box.classList.toggle("sides", c.cdfs.length > 1);
  for (const cdf of c.cdfs) {
    const part = element("div");
    box.append(part);
    curves(part, c, cdf.curves, {
      title: c.cdfs.length > 1 ? cdf.group : "",
      padding: [8, 26, 0, 0],
      scales: { x: { time: false, distr: 3, range: (u, low, high) => low < high ? [low, high] : [low / 2, high * 2] }, y: { range: [0, 1.02] } },
      axes: [
        axis("completion time (logarithmic)", { size: 30, values: (u, v) => v.map((t) => t === null ? null : seconds(t, (n) => String(Number(n.toPrecision(2))))), filter: decades }),
        axis("share completed, %", { size: 46, values: (u, v) => v.map((s) => Math.round(100 * s)) }),
      ],
    }, [cdf.x, ...cdf.curves.map((s) => s.y)], (u, i) => [
      tipLine(null, "within", seconds(cdf.x[i])),
      ...cdf.curves.filter((_, n) => u.series[n + 1].show).map((s) => tipLine(c.subjects[s.s].colour, c.subjects[s.s].name, (100 * s.y[i]).toFixed(1) + " %")),
    ]);
  }
}

// decades labels powers of ten, and 2 and 5 times these if there is room.
function decades(u, splits) {
  const leads = Math.log10(u.scales.x.max / u.scales.x.min) > 2.5 ? [1] : [1, 2, 5];
  return splits.map((v) => {
    const lead = v / 10 ** Math.floor(Math.log10(v) + 1e-9);
    return leads.some((n) => Math.abs(lead - n) < 1e-6) ? v : null;
  });
}

// From connection to connection: the choices, and below them the regret, on the same axis
// unless regret is of one group's connections only.

const gutter = 108; // room for names and labels, margin for half a label
const margin = 22;

function drawLearning(box) {
  const c = cases.get(box.dataset.case);
  const choices = c.choices ?? [], regret = c.regret ?? [];
  const ends = regret.map((p) => p.x.at(-1));
  const count = Math.max(...choices.map((p) => p.count), ...(c.group ? [] : ends));
  for (const choice of choices) drawChoice(box, c, choice, count);
  if (regret.length) drawRegret(box, c, c.group ? Math.max(...ends) : count);
}

function drawRegret(box, c, count) {
  const all = uPlot.join(c.regret.map((r) => [[0, ...r.x], [0, ...r.y]]));
  curves(box, c, c.regret, {
    title: c.group ? `Regret, connections of ${c.group}` : "Regret", height: 200, padding: [8, margin, 0, gutter - 64],
    scales: { x: { time: false, range: (u, low, high) => u.zoomed ? [low, high] : [0, count] } },
    axes: [axis(c.group ? `connection of ${c.group}` : "connection", { size: 30 }), axis("connections lost", { size: 46 })],
    hooks: { setSelect: [(u) => { u.zoomed = u.select.width > 0; }] },
  }, all, (u, i) => [
    tipLine(null, "after connection", String(all[0][i])),
    ...c.regret.map((r, n) => [r, all[n + 1][i]]).filter(([, v]) => v !== null && v !== undefined)
      .map(([r, v]) => tipLine(c.subjects[r.s].colour, c.subjects[r.s].name, digits(v) + " lost")),
  ]);
}

// Choices: a row for each congestion control; a darker cell is a greater share.

const svgName = "http://www.w3.org/2000/svg";

function shape(name, attributes, text) {
  const e = document.createElementNS(svgName, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
}

function drawChoice(box, c, choice, count) {
  const holder = element("div", { className: "plot" });
  const bubble = element("div", { className: "tip" });
  box.append(element("div", { className: "head" }, element("b", {}, "Congestion control of " + c.subjects[choice.s].name)), holder);
  onWidth(holder, (width) => holder.replaceChildren(heat(choice, width, count, bubble), bubble));
}

function heat(choice, width, count, bubble) {
  const row = 26, bins = choice.rows[0].y.length, room = (width - gutter - margin) * choice.count / count;
  const bottom = choice.rows.length * row + 2, height = bottom + 18;
  const at = (connection) => gutter + connection / choice.count * room;
  const svg = shape("svg", { class: "heat", width, height, role: "img", "aria-label": "share of congestion controls over connections" });
  choice.rows.forEach((r, n) => {
    const y = n * row + 2, g = shape("g", { class: "c" + (data.cc[r.cc] ?? 7) });
    const share = percent(r.count / choice.count);
    svg.append(shape("text", { x: 0, y: y + row / 2, dy: "0.25em" }, r.cc), shape("text", { x: gutter - 10, y: y + row / 2, dy: "0.25em", "text-anchor": "end" }, share));
    g.append(shape("rect", { x: gutter, y, width: room, height: row - 4, fill: "currentColor", opacity: 0.08 }));
    for (let from = 0; from < bins;) {
      let to = from + 1;
      while (to < bins && r.y[to] === r.y[from]) to++;
      if (r.y[from] > 0) {
        g.append(shape("rect", {
          x: gutter + from / bins * room, y, width: (to - from) / bins * room + 0.3, height: row - 4, fill: "currentColor", opacity: 0.9 * r.y[from],
        }));
      }
      from = to;
    }
    svg.append(g);
  });
  const fewRounds = choice.rounds !== null && choice.rounds.length <= 60;
  if (fewRounds) {
    for (const start of choice.rounds) svg.append(shape("line", { class: "reference", x1: at(start), x2: at(start), y1: 0, y2: bottom }));
  }
  (choice.warmup ?? []).forEach(([from, to], i) => {
    svg.append(shape("line", { class: "warmup", x1: at(from), x2: at(to), y1: bottom + 1, y2: bottom + 1 }));
    if (i === 0) svg.append(shape("text", { class: "tick", x: at(from), y: bottom + 15 }, "warm-up"));
  });
  svg.append(shape("text", { class: "tick", x: at(choice.count), y: bottom + 15, "text-anchor": "end" },
    fewRounds ? "dashed: next round" : ""));
  svg.addEventListener("mousemove", (e) => readHeat(e, svg, choice, room, bubble));
  svg.addEventListener("mouseleave", () => { bubble.style.display = "none"; });
  return svg;
}

// percent distinguishes a small share from 0.
function percent(share) {
  const n = Math.round(100 * share);
  return n === 0 && share > 0 ? "< 1 %" : n === 100 && share < 1 ? "> 99 %" : n + " %";
}

function readHeat(e, svg, choice, room, bubble) {
  const bounds = svg.getBoundingClientRect(), bins = choice.rows[0].y.length;
  const bin = Math.floor((e.clientX - bounds.left - gutter) / room * bins);
  if (bin < 0 || bin >= bins) {
    bubble.style.display = "none";
    return;
  }
  const first = Math.ceil(bin * choice.count / bins) + 1, last = Math.ceil((bin + 1) * choice.count / bins);
  bubble.replaceChildren(tipLine(null, "connection", first < last ? `${first} to ${last}` : String(last)),
    ...choice.rows.filter((r) => r.y[bin] > 0).map((r) => tipLine(data.cc[r.cc] ?? 7, r.cc, percent(r.y[bin]))));
  bubble.style.display = "block";
  bubble.style.left = Math.min(e.clientX - bounds.left + 14, svg.clientWidth - bubble.offsetWidth) + "px";
  bubble.style.top = e.clientY - bounds.top + 10 + "px";
}

const makers = { time: drawTime, learning: drawLearning, cdf: drawCDF };
for (const [kind, make] of Object.entries(makers)) {
  document.querySelectorAll(".plots." + kind).forEach((box) => whenSeen(box, make));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((draw) => draw()));

// The table of contents highlights the section that is shown.
const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.getAttribute("href").slice(1), a]));
const follow = new IntersectionObserver((entries) => {
  for (const e of entries) {
    if (!e.isIntersecting) continue;
    links.forEach((a) => a.classList.remove("here"));
    links.get(e.target.id)?.classList.add("here");
  }
}, { rootMargin: "0px 0px -70% 0px" });
document.querySelectorAll("[id]").forEach((e) => { if (links.has(e.id)) follow.observe(e); });
