"use strict";

// What all plots share: colours of the current scheme, axes, tooltips. Names come from
// files: they become text nodes, never markup.

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (n) => variable("--c" + n);
const font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';

function element(name, properties, ...children) {
  const e = document.createElement(name);
  Object.assign(e, properties);
  e.append(...children);
  return e;
}

// digits formats three significant digits, without an exponent.
function digits(v) {
  if (v === 0) return "0";
  const a = Math.abs(v);
  return v.toFixed(a >= 99.95 ? 0 : a >= 9.995 ? 1 : a >= 0.9995 ? 2 : Math.min(6, 2 - Math.floor(Math.log10(a))));
}

function seconds(s, write = digits) {
  return s >= 0.9995 ? write(s) + " s" : s >= 0.9995e-3 ? write(s * 1e3) + " ms" : write(s * 1e6) + " us";
}

// What to do for each plot when the colour scheme changes.
const drawn = [];

// whenSeen makes a plot when it is scrolled near the view, or before printing.
function whenSeen(box, make) {
  const once = () => {
    seen.disconnect();
    if (!box.hasChildNodes()) make(box);
  };
  const seen = new IntersectionObserver((entries) => { if (entries.some((e) => e.isIntersecting)) once(); }, { rootMargin: "600px" });
  addEventListener("beforeprint", once);
  if (box.getBoundingClientRect().top < 1.5 * innerHeight) once();
  else seen.observe(box);
}

// onWidth draws now and whenever the width of box changes.
function onWidth(box, draw) {
  let width = 0;
  const check = () => {
    const now = Math.floor(box.clientWidth);
    if (now > 0 && now !== width) draw(width = now);
  };
  check();
  new ResizeObserver(check).observe(box);
}

function axis(label, more) {
  return {
    stroke: () => variable("--soft"), font, labelFont: font, label, labelSize: 18, labelGap: 0, gap: 4,
    grid: { stroke: () => variable("--line"), width: 1 }, ticks: { show: false }, ...more,
  };
}

// plot draws curves in parent. tip(u, i) returns the tooltip at the i-th x as nodes, or
// nothing.
function plot(parent, options, values, tip) {
  const box = element("div", { className: "plot" });
  parent.append(box);
  const bubble = element("div", { className: "tip" });
  const u = new uPlot({
    width: Math.max(200, Math.floor(box.clientWidth)),
    legend: { show: false },
    padding: [8, 12, 0, 0],
    ...options,
    cursor: { points: { show: false }, drag: { x: true, y: false }, ...options.cursor },
    hooks: { ...options.hooks, setCursor: [(u) => showTip(u, bubble, tip)] },
  }, values, box);
  u.over.append(bubble);
  u.over.addEventListener("mouseleave", () => { bubble.style.display = "none"; });
  u.over.addEventListener("mouseenter", () => { u.hovered = true; });
  u.over.addEventListener("mouseleave", () => { u.hovered = false; });
  onWidth(box, (width) => u.setSize({ width, height: options.height }));
  drawn.push(() => u.redraw());
  return u;
}

function showTip(u, bubble, tip) {
  const { left, top, idx } = u.cursor;
  const nodes = u.hovered && left >= 0 && idx !== null ? tip(u, idx) : undefined;
  if (!nodes) {
    bubble.style.display = "none";
    return;
  }
  bubble.replaceChildren(...nodes);
  bubble.style.display = "block";
  const { width, height } = bubble.getBoundingClientRect();
  const right = left + 14 + width > u.over.clientWidth;
  bubble.style.left = Math.max(0, right ? left - 14 - width : left + 14) + "px";
  bubble.style.top = Math.max(0, Math.min(top + 10, u.over.clientHeight - height)) + "px";
}

// tipLine is one line of a tooltip.
function tipLine(n, name, text) {
  const line = element("div", {}, name + " ", element("b", {}, text));
  if (n !== null) line.prepend(element("i", { className: "c" + n }));
  return line;
}

// key is an entry of a legend; a click shows or hides its curves.
function key(n, text, toggle) {
  const button = element("button", { type: "button" }, element("i"), element("span", {}, text));
  button.setAttribute("aria-pressed", "true");
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    toggle(on);
  });
  return element("span", { className: "key c" + n }, button);
}

// dashes distinguish curves without colour.
const dashes = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
