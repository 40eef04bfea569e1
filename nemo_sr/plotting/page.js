// SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
// SPDX-License-Identifier: Apache-2.0
// Draws the panels of the page from the numbers in it; asks nothing of a network.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const MARGIN = { left: 58, right: 12, top: 10, bottom: 24 };
const DASHES = ["", "7 4", "2 3"]; // as the swatches: solid, dashed, dotted
const state = { hidden: new Set(), smoothing: data.smoothing, zoom: null, highlighted: null };
const panels = [];

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const color = (run) => `var(--run-${run % data.colors})`;
// Later curves lie on earlier ones, which are wider: none hides another that has the same values.
const thickness = (run) => Math.max(1.3, 2.6 - 0.65 * run);
const dash = (run) => DASHES[Math.floor(run / data.colors) % DASHES.length];

function swatch(run) {
  const style = ["solid", "dashed", "dotted"][Math.floor(run / data.colors) % DASHES.length];
  return element("span", { class: "swatch", style: `border-color: ${color(run)}; border-top-style: ${style}` });
}

function write(value, digits = 4) {
  if (value === null) return "not finite";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(Math.min(digits - 1, 2)).replace(/\.?0+e/, "e");
  return Number(value.toPrecision(size >= 1000 ? 6 : digits)).toLocaleString("en-US", { maximumFractionDigits: 6 });
}

// As in curves.py: an exponential average without a bias at the start; what is not finite stays a gap.
function smooth(values, weight) {
  let average = 0, total = 0;
  return values.map((value) => {
    if (value === null) return null;
    average = average * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return average / total;
  });
}

function linearTicks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) ticks.push(index * step);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [], factors = high / low > 100 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const factor of factors) ticks.push(factor * 10 ** power);
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  return inside.length > 1 ? inside : linearTicks(low, high, 5).filter((tick) => tick > 0);
}

function domainOfSteps() {
  if (state.zoom) return state.zoom;
  let low = Infinity, high = -Infinity;
  for (const panel of panels)
    for (const { run, x } of panel.curves) {
      if (state.hidden.has(run)) continue;
      low = Math.min(low, x[0]);
      high = Math.max(high, x[x.length - 1]);
    }
  if (low > high) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}

function domainOfValues(panel, drawn, [first, last]) {
  let low = Infinity, high = -Infinity;
  for (const { x, y } of drawn)
    x.forEach((step, index) => {
      const value = y[index];
      if (step < first || step > last || value === null || (panel.log && value <= 0)) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    });
  if (panel.band) [low, high] = [Math.min(low, -panel.band), Math.max(high, panel.band)];
  if (low > high) return panel.log ? [0.1, 1] : [0, 1];
  if (panel.log) {
    const room = Math.max((high / low) ** 0.05, 1.02);
    return [low / room, high * room];
  }
  const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

function path(panel, x, y, toX, toY) {
  let commands = "", pen = "M";
  x.forEach((step, index) => {
    const value = y[index];
    if (value === null || (panel.log && value <= 0)) {
      pen = "M";
      return;
    }
    commands += `${pen}${toX(step).toFixed(1)} ${toY(value).toFixed(1)}`;
    pen = "L";
  });
  return commands;
}

function draw(panel) {
  const width = Math.max(panel.svg.clientWidth, 160), height = panel.height;
  panel.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  panel.svg.setAttribute("height", height);
  const shown = panel.curves.filter(({ run }) => !state.hidden.has(run));
  const smoothing = panel.smoothed ? state.smoothing : 0;
  const [first, last] = domainOfSteps();
  const [low, high] = domainOfValues(panel, shown, [first, last]);
  const scale = panel.log ? Math.log : (value) => value;
  const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
  const toX = (step) => MARGIN.left + ((step - first) / (last - first)) * (right - MARGIN.left);
  const toY = (value) => bottom - ((scale(value) - scale(low)) / (scale(high) - scale(low))) * (bottom - MARGIN.top);
  const parts = [];
  if (panel.band)
    parts.push(shape("rect", { class: "band", x: MARGIN.left, width: right - MARGIN.left, y: toY(panel.band), height: toY(-panel.band) - toY(panel.band) }));
  for (const tick of panel.log ? logTicks(low, high) : linearTicks(low, high, 5)) {
    parts.push(shape("line", { class: "grid", x1: MARGIN.left, x2: right, y1: toY(tick), y2: toY(tick) }));
    parts.push(shape("text", { x: MARGIN.left - 6, y: toY(tick) + 4, "text-anchor": "end" }, write(tick, 3)));
  }
  const ticks = linearTicks(first, last, Math.max(2, Math.floor(width / 70)));
  for (const tick of ticks.filter(Number.isInteger)) {
    const anchor = toX(tick) > right - 14 ? "end" : "middle";
    parts.push(shape("text", { x: toX(tick), y: height - 6, "text-anchor": anchor }, tick.toLocaleString("en-US")));
  }
  parts.push(shape("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
  const clip = `clip-${panel.id}`, region = shape("clipPath", { id: clip });
  region.append(shape("rect", { x: MARGIN.left - 4, y: 0, width: right - MARGIN.left + 8, height: bottom + 4 }));
  parts.push(region);
  const curves = shape("g", { "clip-path": `url(#${clip})` });
  panel.drawn = shown.map(({ run, x, y }) => {
    const faded = state.highlighted !== null && state.highlighted !== run ? " faded" : "";
    const values = smoothing ? smooth(y, smoothing) : y;
    if (smoothing)
      curves.append(shape("path", { class: `curve raw${faded}`, stroke: color(run), d: path(panel, x, y, toX, toY) }));
    curves.append(shape("path", { class: `curve${faded}`, stroke: color(run), "stroke-width": thickness(run), "stroke-dasharray": dash(run), d: path(panel, x, values, toX, toY) }));
    if ((panel.markers && x.length <= 60) || x.length === 1)
      x.forEach((step, index) => {
        if (values[index] === null || (panel.log && values[index] <= 0)) return;
        curves.append(shape("circle", { class: faded, cx: toX(step), cy: toY(values[index]), r: thickness(run) + 1, fill: color(run) }));
      });
    return { run, x, y, values };
  });
  parts.push(curves);
  panel.cross = shape("line", { class: "cross", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
  panel.zoom = shape("rect", { class: "zoom", y: MARGIN.top, height: bottom - MARGIN.top, visibility: "hidden" });
  parts.push(panel.cross, panel.zoom);
  panel.svg.replaceChildren(...parts);
  panel.toX = toX;
  panel.toStep = (at) => first + ((at - MARGIN.left) / (right - MARGIN.left)) * (last - first);
}

const drawAll = () => panels.forEach(draw);

function nearest(x, step) {
  let low = 0, high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] < step) low = middle;
    else high = middle;
  }
  return Math.abs(x[low] - step) <= Math.abs(x[high] - step) ? low : high;
}

function pointAt(panel, at) {
  const wanted = panel.toStep(at);
  const steps = panel.drawn.map(({ x }) => x[nearest(x, wanted)]);
  if (!steps.length) return;
  const step = steps.reduce((best, other) => (Math.abs(other - wanted) < Math.abs(best - wanted) ? other : best));
  for (const other of panels) {
    other.cross.setAttribute("x1", other.toX(step));
    other.cross.setAttribute("x2", other.toX(step));
    other.cross.setAttribute("visibility", "visible");
  }
  const lines = panel.drawn
    .filter(({ x }) => x[0] <= step && step <= x[x.length - 1])
    .map(({ run, x, y, values }) => ({ run, x, y, values, index: nearest(x, step) }))
    .map(({ run, x, y, values, index }) => ({ run, at: x[index], value: y[index], shown: values[index] }))
    .sort((one, other) => (other.shown ?? Infinity) - (one.shown ?? Infinity));
  panel.tip.replaceChildren(
    element("div", {}, element("b", {}, `step ${step.toLocaleString("en-US")}`)),
    ...lines.map(({ run, at, value, shown }) => {
      const text = value === shown ? write(value) : `${write(shown)} (${write(value)})`;
      const name = at === step ? data.runs[run] : `${data.runs[run]} at ${at.toLocaleString("en-US")}`;
      return element("div", {}, swatch(run), element("span", { class: "name" }, name), element("span", {}, text));
    }),
  );
  const isRight = panel.toX(step) > panel.svg.clientWidth / 2;
  panel.tip.style.left = isRight ? `${MARGIN.left + 16}px` : "auto";
  panel.tip.style.right = isRight ? "auto" : "20px";
  const [plot, frame] = [panel.svg, panel.svg.parentElement].map((box) => box.getBoundingClientRect());
  panel.tip.style.top = `${plot.top - frame.top}px`;
  panel.tip.hidden = false;
}

function pointAway() {
  for (const panel of panels) {
    panel.cross.setAttribute("visibility", "hidden");
    panel.tip.hidden = true;
  }
}

function listen(panel) {
  let start = null;
  const place = (event) => event.clientX - panel.svg.getBoundingClientRect().left;
  panel.svg.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") start = place(event);
    pointAway();
    pointAt(panel, place(event));
  });
  panel.svg.addEventListener("pointermove", (event) => {
    if (start === null) return pointAt(panel, place(event));
    panel.zoom.setAttribute("x", Math.min(start, place(event)));
    panel.zoom.setAttribute("width", Math.abs(place(event) - start));
    panel.zoom.setAttribute("visibility", "visible");
  });
  window.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [from, to] = [start, place(event)].sort((one, other) => one - other);
    start = null;
    panel.zoom.setAttribute("visibility", "hidden");
    if (to - from > 12) zoomTo([Math.max(panel.toStep(from), 0), panel.toStep(to)]);
  });
  panel.svg.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") pointAway(); // what a finger has pointed at stays until the next touch
  });
  panel.svg.addEventListener("dblclick", () => zoomTo(null));
}

function zoomTo(steps) {
  state.zoom = steps;
  document.getElementById("reset").hidden = steps === null;
  drawAll();
  pointAway();
}

function buildControls() {
  const chips = document.getElementById("chips");
  data.runs.forEach((name, run) => {
    const chip = element("button", { class: "chip", type: "button", "aria-pressed": "true" }, swatch(run), name);
    chip.addEventListener("click", () => {
      if (!state.hidden.delete(run)) state.hidden.add(run);
      chip.setAttribute("aria-pressed", String(!state.hidden.has(run)));
      drawAll();
    });
    const highlight = (which) => () => {
      state.highlighted = which;
      drawAll();
    };
    chip.addEventListener("mouseenter", highlight(run));
    chip.addEventListener("mouseleave", highlight(null));
    chips.append(chip);
  });
  const slider = document.getElementById("smoothing");
  slider.value = state.smoothing;
  slider.addEventListener("input", () => {
    state.smoothing = Number(slider.value);
    document.getElementById("weight").textContent = state.smoothing.toFixed(2);
    drawAll();
  });
  document.getElementById("weight").textContent = state.smoothing.toFixed(2);
  document.getElementById("reset").addEventListener("click", () => zoomTo(null));
}

for (const panel of data.panels) {
  const figure = document.getElementById(panel.id);
  panel.height = 230;
  panel.svg = shape("svg", { role: "img", "aria-label": `${panel.title} over steps, ${panel.curves.length} curves` });
  panel.tip = element("div", { class: "tip" });
  panel.tip.hidden = true;
  figure.append(panel.svg, panel.tip);
  panels.push(panel);
}
for (const place of document.querySelectorAll("th[data-run]")) place.prepend(swatch(Number(place.dataset.run)));
buildControls();
drawAll();
panels.forEach(listen);
let drawnAt = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === drawnAt) return; // a phone's address bar came or went
  drawnAt = window.innerWidth;
  drawAll();
});
