"use strict";
// Draws the page from the data in it: tables, and figures as SVG. `D` is the data, `now` what the reader has chosen.
let D = JSON.parse(document.getElementById("data").textContent);
const now = { view: "", metric: "", hidden: new Set(), own: {}, sorted: {} };
const $ = (id) => document.getElementById(id);
const root = document.documentElement;

// ---------------------------------------------------------------- small helpers

function make(space, tag, attributes, kids) {
  const node = space ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  node.append(...kids.flat().filter((kid) => kid !== undefined && kid !== null));
  return node;
}
const h = (tag, attributes, ...kids) => make(false, tag, attributes, kids);
const s = (tag, attributes, ...kids) => make(true, tag, attributes, kids);
const say = (x, y, text, more) => s("text", { x, y, fill: "var(--faint)", "font-size": 11, ...more }, text);
const range = (n) => Array.from({ length: n }, (_, i) => i);
const known = (v) => v !== null && v !== undefined;
const lowerIsBetter = () => D.lower.includes(now.metric);
const score = (v, metric = now.metric) => (!known(v) ? "–" : D.lower.includes(metric) ? v.toFixed(2) : `${(100 * v).toFixed(1)} %`);
const tick = (v) => (lowerIsBetter() ? String(+v.toFixed(3)) : `${+(100 * v).toFixed(1)} %`);
const points = (v) => (v < 0 ? "−" : "+") + (lowerIsBetter() ? Math.abs(v).toFixed(2) : `${Math.abs(100 * v).toFixed(1)} points`);
const big = (v) => (v >= 1e9 ? `${(v / 1e9).toPrecision(3)} G` : v >= 1e6 ? `${(v / 1e6).toPrecision(3)} M` : v >= 1e3 ? `${(v / 1e3).toPrecision(3)} k` : `${+v.toPrecision(3)} `);
const plural = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;
const colour = (i) => `var(--c${i % 8})`;
const dash = (i) => ["", "7 3", "2 3", "9 3 2 3"][Math.floor(i / 8) % 4];
const look = (method) => ({ colour: colour(D.methods.indexOf(method)), dash: dash(D.methods.indexOf(method)) });
const shown = (methods) => D.methods.filter((m) => !now.hidden.has(m) && methods && m in methods);
const pen = document.createElement("canvas").getContext("2d");
function width(text, size = 11) {  // size: pixels, or weight and pixels
  pen.font = `${size}px system-ui, sans-serif`;
  return pen.measureText(text).width;
}
function cut(text, room, size = 11) {
  if (width(text, size) <= room) return text;
  let kept = text.length;
  while (kept > 1 && width(text.slice(0, kept) + "…", size) > room) kept--;
  return text.slice(0, kept) + "…";
}
/** A name that is too long without its middle: how it begins and ends is what tells it from others. */
function squeeze(text, room, size = 11) {
  if (width(text, size) <= room) return text;
  let kept = text.length - 1;
  const short = () => text.slice(0, Math.ceil(kept / 2)).trimEnd() + "…" + text.slice(text.length - Math.floor(kept / 2)).trimStart();
  while (kept > 2 && width(short(), size) > room) kept--;
  return short();
}
function ticks(low, high, most) {
  const rough = (high - low) / Math.max(1, most) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((f) => f >= rough) || 10 * power;
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(+v.toPrecision(12));
  return found;
}
function spread(values, room = 0.05) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (known(v)) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low > high) return [0, 1];
  const margin = (high - low || Math.abs(high) || 1) * room;
  return [low - margin, high + margin];
}
const within = ([low, high], [from, to]) => [low + from * (high - low), low + to * (high - low)];

// Colours of cells: viridis for scores, from paper to blue for counts and shares.
const VIRIDIS = ["#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725"];
const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
function along(stops, t) {
  const place = Math.max(0, Math.min(1, t)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(place));
  const [a, b] = [parts(stops[i]), parts(stops[i + 1])];
  return a.map((v, k) => Math.round(v + (b[k] - v) * (place - i)));
}
const rgb = (c) => `rgb(${c.join(",")})`;
const onTop = (c) => (0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2] > 145 ? "#111" : "#fff");
const blues = () => (root.dataset.theme === "dark" ? ["#20303f", "#2f6ea3", "#9bd3ff"] : ["#e3eef8", "#5aa2d6", "#08406f"]);

// ---------------------------------------------------------------- figures: a frame, a drawing, a table of its numbers

const figures = [];
/** A figure in a section. `draw(c)` fills `c.svg`, `c.w` wide, and returns its height; `have()` says if there is anything
 *  to draw, `rows()` gives its numbers as a table, `alt()` says it in words, `choices` are its own menus. */
function figure(section, id, spec) {
  const f = { id, zoom: { x: [0, 1], y: [0, 1] }, ...spec };
  f.canvas = h("div", { class: "canvas" });
  f.note = h("p", { class: "note" });
  f.menus = h("span", { class: "tools" });
  f.back = h("button", { type: "button", hidden: "" }, "Whole picture");
  f.back.onclick = () => { f.zoom = { x: [0, 1], y: [0, 1] }; paint(f); };
  const tool = (name, what, run) => {
    const button = h("button", { type: "button", "aria-label": `${f.title}: download ${what}` }, name);
    button.onclick = run;
    return button;
  };
  const tools = h("span", { class: "tools" }, f.back, tool("SVG", "picture", () => download(`${f.id}.svg`, "image/svg+xml", picture(f))),
    tool("CSV", "numbers", () => download(`${f.id}.csv`, "text/csv", csv(f.rows()))));
  f.node = h("figure", { class: "card", id: `figure-${id}` }, h("div", { class: "head" }, h("h3", {}, f.title), f.menus, tools), f.canvas, f.note);
  $(section).append(f.node);
  listen(f);
  figures.push(f);
}
function own(f, key) {
  const all = f.choices.find((c) => c.key === key).options();
  const chosen = now.own[`${f.id}-${key}`];
  if (all.some(([value]) => value === chosen)) return chosen;
  const first = f.choices.find((c) => c.key === key).first?.();
  return all.some(([value]) => value === first) ? first : all.length ? all[0][0] : "";
}
function menus(f) {
  f.menus.replaceChildren(...(f.choices || []).map((choice) => {
    const chosen = own(f, choice.key);
    const select = h("select", { "aria-label": `${f.title}: ${choice.label}` },
      ...choice.options().map(([value, label]) => h("option", { value, selected: value === chosen ? "" : null }, label)));
    select.onchange = () => { now.own[`${f.id}-${choice.key}`] = select.value; paint(f); };
    return choice.options().length > 1 ? select : null;
  }).filter(Boolean));
}
function paint(f) {
  const have = f.have();
  f.node.hidden = !have;
  if (!have) return;
  menus(f);
  const c = { f, w: now.printing ? 1000 : Math.max(260, Math.round(f.canvas.clientWidth || 700)), plots: [], hover: [], zoom: f.zoom };
  c.svg = s("svg", { role: "img", xmlns: "http://www.w3.org/2000/svg", "font-family": "system-ui, sans-serif" });
  const tall = Math.ceil(f.draw(c)), alt = f.alt();
  c.svg.setAttribute("viewBox", `0 0 ${c.w} ${tall}`);
  c.svg.setAttribute("aria-label", `${f.title}. ${alt}`);
  c.svg.prepend(s("title", {}, f.title), s("desc", {}, alt));
  f.drawn = c;
  f.canvas.replaceChildren(c.svg);
  f.note.textContent = f.caption ? f.caption() : "";
  f.back.hidden = f.zoom.x[1] - f.zoom.x[0] > 0.999 && f.zoom.y[1] - f.zoom.y[0] > 0.999;
}
function at(f, event) {
  const box = f.drawn.svg.getBoundingClientRect(), k = f.drawn.w / box.width;
  return [(event.clientX - box.left) * k, (event.clientY - box.top) * k];
}
function listen(f) {
  let start = null, mark = null, area = null;
  const ends = (x, y) => [[Math.max(area.x, Math.min(start[0], x)), Math.min(area.x + area.w, Math.max(start[0], x))],
    [Math.max(area.y, Math.min(start[1], y)), Math.min(area.y + area.h, Math.max(start[1], y))]];
  f.canvas.onpointerdown = (event) => {
    start = at(f, event);
    area = f.drawn.plots.find((p) => start[0] >= p.x && start[0] <= p.x + p.w && start[1] >= p.y && start[1] <= p.y + p.h);
  };
  f.canvas.onpointermove = (event) => {
    const [x, y] = at(f, event);
    if (area && event.buttons && Math.abs(x - start[0]) > 6) {
      const [[x0, x1], [y0, y1]] = ends(x, y), flat = area.only === "x";
      if (!mark) f.drawn.svg.append(mark = s("rect", { fill: "var(--accent)", opacity: 0.18 }));
      for (const [k, v] of Object.entries({ x: x0, width: x1 - x0, y: flat ? area.y : y0, height: flat ? area.h : y1 - y0 })) mark.setAttribute(k, v);
      return tip("");
    }
    const said = event.target.closest("[data-tip]");
    tip(said ? said.dataset.tip : f.drawn.hover.map((look_) => look_(x, y)).find(Boolean) || "", event);
  };
  f.canvas.onpointerup = (event) => {
    if (mark) {
      const [[x0, x1], [y0, y1]] = ends(...at(f, event));
      const to = (span, from, till) => within(span, [from, till]);
      if (x1 - x0 > 8) f.zoom = { ...f.zoom, x: to(f.zoom.x, (x0 - area.x) / area.w, (x1 - area.x) / area.w) };
      const up = (v) => (area.down ? (v - area.y) / area.h : 1 - (v - area.y) / area.h);
      if (area.only !== "x" && y1 - y0 > 8) f.zoom = { ...f.zoom, y: to(f.zoom.y, Math.min(up(y0), up(y1)), Math.max(up(y0), up(y1))) };
      paint(f);
    }
    start = mark = area = null;
  };
  f.canvas.onpointerleave = () => { tip(""); if (mark) mark.remove(); start = mark = area = null; };
  f.canvas.ondblclick = () => f.back.click();
}
function tip(text, event) {
  const node = $("tip");
  node.hidden = !text;
  if (!text) return;
  node.textContent = text;
  const box = node.getBoundingClientRect();
  node.style.left = `${Math.max(4, Math.min(innerWidth - box.width - 4, event.clientX + 14))}px`;
  node.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}
/** The picture as a file, on white paper: names of colours become colours. */
function picture(f) {
  const before = root.dataset.theme;
  root.dataset.theme = "light";
  paint(f);
  const whole = f.drawn.svg.cloneNode(true), [, , w, tall] = whole.getAttribute("viewBox").split(" ");
  whole.setAttribute("width", w);
  whole.setAttribute("height", tall);
  whole.insertBefore(s("rect", { width: w, height: tall, fill: "#ffffff" }), whole.children[2] || null);
  const text = new XMLSerializer().serializeToString(whole).replace(/var\((--[\w-]+)\)/g, (_, name) => style(name));
  root.dataset.theme = before;
  paint(f);
  return text;
}
const csv = (rows) => rows.map((row) => row.map((v) => (!known(v) ? "" : /[",\n]/.test(v) ? `"${String(v).replaceAll('"', '""')}"` : v)).join(",")).join("\n") + "\n";
function download(name, type, text) {
  const link = h("a", { download: `${D.name}-${name}`, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---------------------------------------------------------------- what figures are made of

/** A plot's frame with ticks; gives the scales and a group cut to its area. */
function plot(c, box, { x, y, xlabel, title, xfmt, yfmt, only, xticks, whole, bare }) {
  const [x0, x1] = within(x, c.zoom.x), [y0, y1] = only === "x" ? y : within(y, c.zoom.y);
  const X = (v) => box.x + ((v - x0) / (x1 - x0 || 1)) * box.w, Y = (v) => box.y + box.h - ((v - y0) / (y1 - y0 || 1)) * box.h;
  if (title) c.svg.append(say(box.x, box.y - 10, cut(title, Math.min(box.w + 36, c.w - box.x - 2), "600 12"), { fill: "var(--ink)", "font-size": 12, "font-weight": 600 }));
  for (const v of yfmt ? ticks(y0, y1, box.h / 45) : []) {
    c.svg.append(s("line", { x1: box.x, x2: box.x + box.w, y1: Y(v), y2: Y(v), stroke: "var(--rule)" }), say(box.x - 6, Y(v) + 4, yfmt(v), { "text-anchor": "end" }));
  }
  for (const v of xticks || ticks(x0, x1, box.w / 55)) {
    if (whole && v % 1) continue;
    c.svg.append(say(X(v), box.y + box.h + 16, (xfmt || String)(v), { "text-anchor": "middle" }));
    if (!yfmt) c.svg.append(s("line", { x1: X(v), x2: X(v), y1: box.y, y2: box.y + box.h, stroke: "var(--rule)" }));
  }
  c.svg.append(bare ? s("rect", { ...{ x: box.x, y: box.y, width: box.w, height: box.h }, fill: "none", stroke: "var(--rule)", rx: 4 }) :
    s("line", { x1: box.x, x2: box.x + box.w, y1: box.y + box.h, y2: box.y + box.h, stroke: "var(--faint)" }));
  if (xlabel) c.svg.append(say(box.x + box.w / 2, box.y + box.h + 32, xlabel, { "text-anchor": "middle" }));
  const id = `clip-${c.f.id}-${c.plots.length}`;
  const g = s("g", { "clip-path": `url(#${id})` });
  c.svg.append(s("clipPath", { id }, s("rect", { x: box.x - 4, y: box.y - 3, width: box.w + 8, height: box.h + 6 })), g);
  c.plots.push({ ...box, only });
  return { X, Y, g, x0, x1 };
}
/** Names and their colours, in as many lines as they take; gives the height. */
function legend(c, top, items, left = 8) {
  let x = left, y = top + 12;
  for (const item of items) {
    const text = squeeze(item.label, c.w - left - 40), wide = width(text) + 40;
    if (x + wide > c.w && x > left) { x = left; y += 18; }
    c.svg.append(item.mark ? mark(x + 10, y - 4, item.mark, item.colour, 5) :
      item.block ? s("rect", { x: x + 3, y: y - 10, width: 14, height: 11, rx: 2, fill: item.colour }) :
      s("line", { x1: x, x2: x + 20, y1: y - 4, y2: y - 4, stroke: item.colour, "stroke-width": 2.5, "stroke-dasharray": item.dash }),
    say(x + 25, y, text));
    x += wide;
  }
  return y - top + 10;
}
const SHAPES = ["circle", "square", "up", "diamond", "down", "cross"];
function mark(x, y, shape, fill, r, more) {
  if (shape === "circle") return s("circle", { cx: x, cy: y, r, fill, ...more });
  const p = { square: `M-.9-.9H.9V.9H-.9Z`, up: "M0-1.1 1 .8H-1Z", down: "M0 1.1 1-.8H-1Z", diamond: "M0-1.25 1.1 0 0 1.25-1.1 0Z", cross: "M-.35-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
    star: "M0-1.2.29-.4 1.14-.37.47.15.71.97 0 .5-.71.97-.47.15-1.14-.37-.29-.4Z" }[shape];
  return s("path", { d: p, fill, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${r})`, ...more });
}
/** Panels beside or below each other, as there is room: boxes to draw in, and the height of all. */
function boxes(c, many, { tall, least = 300, left = 44, right = 14, top = 30, bottom = 40 }) {
  const across = Math.max(1, Math.min(many, Math.floor(c.w / least))), w = c.w / across;
  const found = range(many).map((i) => ({ x: (i % across) * w + left, y: Math.floor(i / across) * (tall + top + bottom) + top, w: w - left - right, h: tall }));
  return [found, Math.ceil(many / across) * (tall + top + bottom)];
}
/** Lines over rounds with bands over seeds. A series: name, colour, dash, round, mean, low, high. */
function lines(c, panels, { fmt, short = fmt }) {
  const [places, tall] = boxes(c, panels.length, { tall: 230 });
  const rounds = spread(panels.flatMap((p) => p.series.flatMap((one) => one.round)), 0);
  if (rounds[0] === rounds[1]) { rounds[0] -= 0.5; rounds[1] += 0.5; }  // one round, in the middle; there is no other to name
  panels.forEach((panel, i) => {
    const all = panel.series.flatMap((one) => [...one.mean, ...(one.low || []), ...(one.high || [])]);
    const box = places[i], p = plot(c, box, { x: rounds, y: spread(all), yfmt: short, title: panel.title, xlabel: "round", whole: true });
    for (const one of panel.series) {
      const spots = range(one.round.length).filter((k) => known(one.mean[k]));
      const path = (ys, order) => order.map((k) => `${p.X(one.round[k]).toFixed(1)} ${p.Y(ys[k]).toFixed(1)}`).join("L");
      if (one.low) p.g.append(s("path", { d: `M${path(one.high, spots)}L${path(one.low, [...spots].reverse())}Z`, fill: one.colour, opacity: 0.15 }));
      if (spots.length > 1) p.g.append(s("path", { d: `M${path(one.mean, spots)}`, fill: "none", stroke: one.colour, "stroke-width": 2, "stroke-dasharray": one.dash, "stroke-linejoin": "round" }));
      if (spots.length < 12) p.g.append(...spots.map((k) => s("circle", { cx: p.X(one.round[k]), cy: p.Y(one.mean[k]), r: 2.8, fill: one.colour })));
    }
    const cross = s("line", { y1: box.y, y2: box.y + box.h, stroke: "var(--faint)", "stroke-dasharray": "2 2", visibility: "hidden" });
    c.svg.append(cross);
    c.hover.push((x, y) => {
      const inside = x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h;
      cross.setAttribute("visibility", inside ? "visible" : "hidden");
      if (!inside) return "";
      const want = p.x0 + ((x - box.x) / box.w) * (p.x1 - p.x0), every = [...new Set(panel.series.flatMap((one) => one.round))];
      const near = every.reduce((a, b) => (Math.abs(b - want) < Math.abs(a - want) ? b : a), every[0]);
      cross.setAttribute("x1", p.X(near)); cross.setAttribute("x2", p.X(near));
      const said = panel.series.map((one) => [one.name, one.mean[one.round.indexOf(near)]]).filter(([, v]) => known(v)).sort((a, b) => b[1] - a[1]);
      return [`round ${near}`, ...said.slice(0, 12).map(([name, v]) => `${name}  ${fmt(v)}`), ...(said.length > 12 ? [`and ${said.length - 12} more`] : [])].join("\n");
    });
  });
  const named = new Map(panels.flatMap((p) => p.series.map((one) => [one.name, one])));
  return tall + legend(c, tall, [...named.values()].map((one) => ({ label: one.name, ...one, mark: null })));
}
const lineRows = (panels) => [["panel", "series", "round", "mean", "low", "high"],
  ...panels.flatMap((p) => p.series.flatMap((one) => one.round.map((r, k) => [p.title || "", one.name, r, one.mean[k], one.low && one.low[k], one.high && one.high[k]])))];
/** Horizontal bars, of parts one after another. A bar: name, parts [[group, value, colour]]. */
function bars(c, panels, fmt) {
  const names = panels.flatMap((p) => p.bars.map((b) => b.name)), left = Math.min(150, c.w * 0.34, Math.max(...names.map((n) => width(n))) + 14);
  const most = Math.max(...panels.map((p) => p.bars.length)), tall = Math.max(60, most * 24);
  const [places, height] = boxes(c, panels.length, { tall, left, right: 20, bottom: 34, least: 380 });
  panels.forEach((panel, i) => {
    const box = places[i], sums = panel.bars.map((b) => b.parts.reduce((t, [, v]) => t + v, 0)), f = panel.fmt || fmt;
    const p = plot(c, { ...box, h: panel.bars.length * 24 }, { x: [0, Math.max(...sums) * 1.04 || 1], y: [0, 1], title: panel.title, xfmt: f, only: "x" });
    panel.bars.forEach((bar, k) => {
      let sum = 0;
      const y = box.y + k * 24 + 4;
      c.svg.append(say(box.x - 8, y + 12, squeeze(bar.name, left - 12), { "text-anchor": "end", fill: "var(--ink)" }));
      for (const [group, value, fill] of bar.parts) {
        const wide = Math.max(value ? 0.6 : 0, p.X(sum + value) - p.X(sum));
        p.g.append(s("rect", { x: p.X(sum), y, width: wide, height: 16, fill, rx: 1.5, "data-tip": `${bar.name}${group ? `, ${group}` : ""}: ${f(value)}` + (bar.parts.length > 1 ? `\nall: ${f(sums[k])}` : "") }));
        sum += value;
      }
    });
  });
  return height;
}
/** A grid of cells: an image if they are many, else rectangles with numbers where there is room. */
function grid(c, box, { rows, columns, value, shade, word, told, title, down, across }) {
  const span = (names, z) => range(names.length).slice(Math.floor(z[0] * names.length + 1e-6), Math.max(1, Math.ceil(z[1] * names.length - 1e-6)));
  const rs = span(rows, c.zoom.y), cs = span(columns, c.zoom.x), cw = box.w / cs.length, ch = box.h / rs.length;
  if (title) c.svg.append(say(box.x, box.y - 10, cut(title, Math.min(box.w + 36, c.w - box.x - 2), "600 12"), { fill: "var(--ink)", "font-size": 12, "font-weight": 600 }));
  if (rs.length * cs.length > 1600) {
    const canvas = h("canvas", { width: cs.length, height: rs.length }), context = canvas.getContext("2d"), image = context.createImageData(cs.length, rs.length);
    rs.forEach((r, i) => cs.forEach((k, j) => {
      const v = value(r, k);
      image.data.set(known(v) ? [...shade(v), 255] : [0, 0, 0, 0], 4 * (i * cs.length + j));
    }));
    context.putImageData(image, 0, 0);
    c.svg.append(s("image", { href: canvas.toDataURL(), ...{ x: box.x, y: box.y, width: box.w, height: box.h }, preserveAspectRatio: "none", style: "image-rendering: pixelated" }));
  } else {
    const gap = Math.min(cw, ch) > 7 ? 1 : 0;
    rs.forEach((r, i) => cs.forEach((k, j) => {
      const v = value(r, k), fill = known(v) ? shade(v) : null;
      c.svg.append(s("rect", { x: box.x + j * cw, y: box.y + i * ch, width: Math.max(0.5, cw - gap), height: Math.max(0.5, ch - gap), fill: fill ? rgb(fill) : "var(--empty)" }));
      const text = fill && word ? word(v, r, k) : "";
      if (text && cw > width(text, 10) + 4 && ch > 13) c.svg.append(say(box.x + (j + 0.5) * cw, box.y + (i + 0.5) * ch + 3.5, text, { "text-anchor": "middle", "font-size": 10, fill: onTop(fill) }));
    }));
  }
  const every = (room, side) => Math.max(1, Math.ceil(room / side));
  const stepR = every(12, ch), lying = Math.max(...cs.map((k) => width(String(columns[k])))) < cw - 3, plainNumbers = typeof columns[0] === "number";
  const easy = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000].find((f) => f * cw > 36) || 1000;  // rounds that are easily read
  const counted = plainNumbers && columns[columns.length - 1] - columns[0] === columns.length - 1;
  const stepC = plainNumbers ? every(40, cw) : lying ? 1 : every(13, cw);
  rs.forEach((r, i) => { if (i % stepR === 0) c.svg.append(say(box.x - 6, box.y + (i + 0.5) * ch + 4, squeeze(String(rows[r]), box.x - (box.edge || 0) - 8), { "text-anchor": "end" })); });
  cs.forEach((k, j) => {
    if (counted ? columns[k] % easy : j % stepC) return;
    const x = box.x + (j + 0.5) * cw, y = box.y + box.h + 14;
    c.svg.append(lying || plainNumbers ? say(x, y, String(columns[k]), { "text-anchor": "middle" }) :
      say(x + 4, y - 6, squeeze(String(columns[k]), 130), { "text-anchor": "end", transform: `rotate(-90 ${x + 4} ${y - 6})` }));
  });
  const below = lying || plainNumbers ? 18 : Math.min(132, Math.max(...cs.map((k) => width(String(columns[k]))))) + 12;
  if (across) c.svg.append(say(box.x + box.w / 2, box.y + box.h + below + 12, across, { "text-anchor": "middle" }));
  if (down) c.svg.append(say(box.x - 8, box.y - 10, down, { "text-anchor": "end" }));
  c.plots.push({ ...box, down: true });
  c.hover.push((x, y) => {
    const i = Math.floor((y - box.y) / ch), j = Math.floor((x - box.x) / cw);
    return i >= 0 && j >= 0 && i < rs.length && j < cs.length ? told(rs[i], cs[j]) : "";
  });
  return below + (across ? 16 : 4);
}
function scaleBar(c, x, y, wide, shade, low, high) {
  range(40).forEach((i) => c.svg.append(s("rect", { x: x + (i * wide) / 40, y, width: wide / 40 + 0.5, height: 9, fill: rgb(shade(i / 39)) })));
  c.svg.append(say(x - 6, y + 9, low, { "text-anchor": "end" }), say(x + wide + 6, y + 9, high));
}
const edge = (c, names, share = 0.34) => Math.min(c.w * share, Math.max(...names.map((n) => width(String(n)))) + 14);

// ---------------------------------------------------------------- the figures

const several = () => new Set(Object.values(D.dataset)).size > 1;
const people = (method) => (D.people[now.view] || {})[D.dataset[method]] || [];
const final = (method, view = now.view) => ((D.final[view] || {})[now.metric] || {})[method];
const heat = (method) => ((D.heat[now.view] || {})[now.metric] || {})[method];
const MOST_DOTS = 2000; // of a method
const lost = (v) => v < -1e-9;
const gains = (method) => ((D.gain[now.view] || {})[now.metric] || {})[method] || null; // over Local, with the seeds both were run with
const mean = (values) => { const all = values.filter(known); return all.length ? all.reduce((a, b) => a + b, 0) / all.length : null; };
const series = (found) => shown(found).map((m) => ({ name: m, ...look(m), ...found[m] }));
const curvePanels = () => Object.keys(D.views).filter((v) => (D.curves[v] || {})[now.metric]).map((v) => ({ title: D.views[v], series: series(D.curves[v][now.metric]) }));

figure("rounds", "convergence", {
  title: "Convergence",
  have: () => curvePanels().length > 0,
  draw: (c) => lines(c, curvePanels(), { fmt: score, short: tick }),
  rows: () => lineRows(curvePanels()),
  alt: () => curvePanels().map((p) => `${p.title}, at the end: ${p.series.map((one) => `${one.name} ${score(one.mean[one.mean.length - 1])}`).join(", ")}`).join(". "),
  caption: () => `${now.metric}, mean over clients. Bands reach from the lowest to the highest seed. Drag across a plot to look closer, double-click to go back.`,
});

figure("clients", "strip", {
  title: "Every client: its score, and its gain over Local",
  have: () => shown((D.final[now.view] || {})[now.metric]).length > 0,
  draw(c) {
    const methods = shown(D.final[now.view][now.metric]), rivals = methods.filter(gains);
    const panels = [{ title: `${now.view} ${now.metric}`, methods, of: final, fmt: score }];
    if (rivals.length) panels.push({ title: "gain over Local", methods: rivals, of: gains, fmt: points, zero: true });
    const left = edge(c, methods, 0.3), row = 34, [places, tall] = boxes(c, panels.length, { tall: methods.length * row, left, right: 24, bottom: 26, least: 420 });
    panels.forEach((panel, i) => {
      const box = { ...places[i], h: panel.methods.length * row }, all = panel.methods.flatMap((m) => panel.of(m)).concat(panel.zero ? [0] : []);
      const f = (v) => (lowerIsBetter() ? v.toFixed(2) : (panel.zero && v > 0 ? "+" : "") + Math.round(1000 * v) / 10);
      const p = plot(c, box, { x: spread(all, 0.04), y: [0, 1], title: panel.title + (lowerIsBetter() ? "" : panel.zero ? ", in points" : ", in %"), xfmt: f, only: "x" });
      if (panel.zero) p.g.append(s("line", { x1: p.X(0), x2: p.X(0), y1: box.y, y2: box.y + box.h, stroke: "var(--ink)", "stroke-width": 1.2 }));
      panel.methods.forEach((m, k) => {
        const middle = box.y + (k + 0.5) * row, values = panel.of(m);
        c.svg.append(say(box.x - 8, middle + 4, squeeze(m, left - 12), { "text-anchor": "end", fill: "var(--ink)" }));
        const step = Math.ceil(values.length / MOST_DOTS);
        values.forEach((v, j) => {
          if (!known(v) || j % step) return;
          const bad = panel.zero && lost(v);
          p.g.append(mark(p.X(v), middle + (((j * 7) % 11) - 5) * 2, bad ? "down" : "circle", panel.zero ? (bad ? "var(--bad)" : "var(--good)") : look(m).colour, bad ? 3.6 : 3.2, { opacity: 0.65, "data-tip": `${people(m)[j]}\n${m}: ${panel.fmt(v)}` }));
        });
        const x = p.X(mean(values) ?? 0);
        p.g.append(s("line", { x1: x, x2: x, y1: middle - 13, y2: middle + 13, stroke: "var(--ink)", "stroke-width": 2.5, "data-tip": `${m}, mean: ${panel.fmt(mean(values) ?? 0)}` }));
      });
    });
    return tall;
  },
  rows: () => [["method", "client", now.metric, "gain over Local"], ...shown(D.final[now.view][now.metric]).flatMap((m) => { const gain = gains(m) || []; return final(m).map((v, i) => [m, people(m)[i], v, gain[i]]); })],
  alt: () => shown(D.final[now.view][now.metric]).map((m) => `${m}: mean ${score(mean(final(m)))}` + (gains(m) ? `, ${plural(gains(m).filter((v) => v > 1e-9).length, "client")} better than alone and ${gains(m).filter(lost).length} worse` : "")).join(". "),
  caption: () => `A dot is a client, mean over seeds; a bar is the mean of all. ${Object.values(D.people[now.view]).some((who) => who.length > MOST_DOTS) ? "Of so many clients some are drawn. " : ""}Triangles that point down are clients who would be better off alone.`,
});

figure("clients", "rounds-by-client", {
  title: "Clients over rounds",
  choices: [{ key: "method", label: "method", first: () => D.best, options: () => D.methods.filter(heat).map((m) => [m, m]) },
    { key: "order", label: "order", options: () => [["name", "by name"], ["score", "by last score"], ["rise", "by how much it rose"]] }],
  have: () => D.methods.some((m) => heat(m)),
  read() {
    const found = heat(own(this, "method")), who = people(own(this, "method")), wide = found.round.length, order = own(this, "order");
    found.ready ||= new Uint16Array(Uint8Array.from(atob(found.cells), (ch) => ch.charCodeAt(0)).buffer);
    const value = (i, k) => (found.ready[i * wide + k] > 65534 ? null : found.low + (found.ready[i * wide + k] / 65534) * (found.high - found.low));
    const key = { name: () => 0, score: (i) => -value(i, wide - 1), rise: (i) => value(i, 0) - value(i, wide - 1) }[order];
    const rows = range(who.length).sort((a, b) => key(a) - key(b) || a - b);
    const all = Object.values(D.heat[now.view][now.metric]);
    return { found, who, rows, value, low: Math.min(...all.map((o) => o.low)), high: Math.max(...all.map((o) => o.high)) };
  },
  draw(c) {
    const { found, who, rows, value, low, high } = this.read(), left = edge(c, who);
    const box = { x: left, y: 28, w: c.w - left - 12, h: Math.max(90, Math.min(560, rows.length * 17)) };
    const tint = (t) => along(VIRIDIS, t), shade = (v) => tint((v - low) / (high - low || 1));
    scaleBar(c, c.w - 190, 4, 110, tint, score(low), score(high));
    const below = grid(c, box, { rows: rows.map((i) => who[i]), columns: found.round, value: (r, k) => value(rows[r], k), shade, across: "round",
      told: (r, k) => `${who[rows[r]]}, round ${found.round[k]}\n${score(value(rows[r], k))}`, word: (v) => (lowerIsBetter() ? v.toFixed(1) : String(Math.round(100 * v))) });
    return box.y + box.h + below + 4;
  },
  rows() { const { found, who, value } = this.read(); return [["client", ...found.round.map((r) => `round ${r}`)], ...who.map((name, i) => [name, ...found.round.map((_, k) => { const v = value(i, k); return v === null ? null : +v.toFixed(5); })])]; },
  alt() { const { found, who } = this.read(); return `${now.view} ${now.metric} of ${who.length} clients with ${own(this, "method")} in ${found.round.length} evaluated rounds, from ${score(found.low)} to ${score(found.high)}.`; },
  caption() { const { found } = this.read(); return `${now.view} ${now.metric}, mean over seeds; one scale for all methods.` + (found.step > 1 ? ` To keep the page small, one of ${found.step} evaluated rounds is shown.` : "") + " Drag over cells to look closer."; },
});

figure("classes", "class-by-client", {
  title: "Who has how much of which class",
  choices: [{ key: "dataset", label: "dataset", options: () => Object.keys(D.counts || {}).map((name) => [name, name]) },
    { key: "split", label: "samples", options: () => [["all", "all samples"], ["train", "for training"], ["val", "for validation"], ["test", "for testing"]] }],
  have: () => Object.keys(D.counts || {}).length > 0,
  counts() { return D.counts[own(this, "dataset")]; },
  count(r, k, split = own(this, "split")) { const of = this.counts(); return split === "all" ? ["train", "val", "test"].reduce((t, name) => t + of[name][k][r], 0) : of[split][k][r]; },
  draw(c) {
    const of = this.counts(), { classes, clients } = of, left = edge(c, classes), box = { x: left, y: 28, w: c.w - left - 12, h: Math.max(60, Math.min(420, classes.length * 24)) };
    const most = Math.max(1, ...clients.flatMap((_, k) => classes.map((_, r) => this.count(r, k)))), stops = blues(), shade = (v) => along(stops, Math.log1p(v) / Math.log1p(most));
    scaleBar(c, c.w - 170, 4, 110, (t) => along(stops, t), "1", String(most));
    const below = grid(c, box, { rows: classes, columns: clients, value: (r, k) => this.count(r, k) || null, shade, word: String,
      told: (r, k) => `${clients[k]}, ${classes[r]}\n` + ["train", "val", "test"].map((name) => `${name} ${of[name][k][r]}`).join(", ") });
    return box.y + box.h + below + 4;
  },
  rows() { const of = this.counts(); return [["client", "class", "train", "val", "test"], ...of.clients.flatMap((who, k) => of.classes.map((name, r) => [who, name, of.train[k][r], of.val[k][r], of.test[k][r]]))]; },
  alt() { const of = this.counts(), held = of.clients.map((_, k) => of.classes.filter((_, r) => this.count(r, k, "all")).length); return `${plural(of.clients.length, "client")} hold ${[...new Set([Math.min(...held), Math.max(...held)])].join(" to ")} of ${of.classes.length} classes each.`; },
  caption() { return `Numbers of samples, colours by their logarithm; ${several() ? `${own(this, "dataset")}, ` : ""}as dealt with seed ${this.counts().seed}.`; },
});

const confused = () => D.methods.filter((m) => m in (D.confusion || {}));
figure("classes", "confusion", {
  title: "What is taken for what",
  choices: [{ key: "method", label: "method", first: () => D.best, options: () => confused().map((m) => [m, m]) },
    { key: "beside", label: "beside it", options: () => { const others = confused().filter((m) => m !== own(figures.find((f) => f.id === "confusion"), "method")); const local = D.local[own(figures.find((f) => f.id === "confusion"), "method")];
      return [...new Set([local, ...others])].filter((m) => others.includes(m)).map((m) => [m, `beside ${m}`]); } }],
  have: () => confused().length > 0,
  two() { return [own(this, "method"), own(this, "beside")].filter(Boolean); },
  draw(c) {
    const beside = c.w > 700, half = beside ? c.w / 2 : c.w, stops = blues();
    let top = 0, tall = 0;
    this.two().forEach((method, i) => {
      const { classes, cells } = D.confusion[method], edgeAt = beside ? i * half : 0, left = Math.min(edge(c, classes), half * 0.34) + 10, side = Math.min(half - left - 16, Math.max(300, classes.length * 50));
      const box = { x: edgeAt + left, y: top + 44, w: side, h: Math.min(side, Math.max(200, classes.length * 32)), edge: edgeAt };
      const sums = cells.map((row) => row.reduce((a, b) => a + b, 0)), share = (r, k) => cells[r][k] / (sums[r] || 1);
      const below = grid(c, box, { title: method, rows: classes, columns: classes, value: (r, k) => (cells[r][k] ? share(r, k) : null), shade: (v) => along(stops, v), word: (_, r, k) => String(cells[r][k]), down: "true", across: "predicted",
        told: (r, k) => `${classes[r]} taken for ${classes[k]}\n${cells[r][k]} of ${sums[r]}` + (sums[r] ? ` (${(100 * share(r, k)).toFixed(1)} %)` : "") });
      tall = Math.max(tall, box.y + box.h + below + 6);
      if (!beside) top = tall;
    });
    return tall;
  },
  rows() { return this.two().flatMap((m) => { const { classes, cells } = D.confusion[m]; return [["method", "true \\ predicted", ...classes], ...classes.map((name, r) => [m, name, ...cells[r]])]; }); },
  alt() {
    return this.two().map((m) => {
      const { classes, cells } = D.confusion[m], wrong = classes.flatMap((a, r) => classes.map((b, k) => [r === k ? 0 : cells[r][k], a, b])).sort((a, b) => b[0] - a[0]).filter(([n]) => n).slice(0, 3);
      return `${m}: ` + (wrong.length ? `most often confused: ${wrong.map(([n, a, b]) => `${a} taken for ${b} (${n})`).join(", ")}` : "nothing is confused");
    }).join(". ");
  },
  caption() { const of = D.confusion[own(this, "method")]; return `Every client's own model on its own test data, all clients together: ${of.samples} samples, seed ${of.seed}. Colours: share of the true class.`; },
});

figure("space", "embeddings", {
  title: "Where samples and prototypes lie",
  choices: [{ key: "method", label: "method", options: () => D.methods.filter((m) => m in (D.embeddings || {})).map((m) => [m, m]),
      first: () => [D.best, ...D.methods].find((m) => D.embeddings[m]?.proto_label.length) || D.best },
    { key: "plane", label: "projection", options: () => ["t-SNE", "PCA"].map((name) => [name, name]) },
    { key: "by", label: "colour", options: () => [["class", "colour by class"], ["client", "colour by client"]] }],
  have: () => Object.keys(D.embeddings || {}).length > 0,
  draw(c) {
    const e = D.embeddings[own(this, "method")], plane = e.planes[own(this, "plane")], by = own(this, "by"), names = by === "class" ? e.classes : e.clients;
    const box = { x: 8, y: 8, w: c.w - 16, h: Math.min(520, Math.max(300, c.w * 0.6)) }, X = plane.map((p) => p[0]), Y = plane.map((p) => p[1]);
    const p = plot(c, box, { x: spread(X), y: spread(Y), xticks: [], bare: true });
    const shape = (i) => SHAPES[Math.floor(i / 8) % SHAPES.length], many = e.label.length, used = new Set();
    plane.forEach(([x, y], i) => {
      const proto = i >= many, label = proto ? e.proto_label[i - many] : e.label[i], owner = proto ? e.proto_client[i - many] : e.client[i], key = by === "class" ? label : owner;
      if (!proto) used.add(key);
      const said = `${proto ? `${e.what} of ` : ""}${e.classes[label]}${owner < 0 ? "" : `\n${e.clients[owner]}`}`;
      p.g.append(mark(p.X(x), p.Y(y), proto ? "star" : shape(key), key < 0 ? "var(--ink)" : colour(key), proto ? (owner < 0 ? 9 : 6) : 3.4,
        proto ? { stroke: "var(--card)", "stroke-width": 0.13, "data-tip": said } : { opacity: 0.6, "data-tip": said }));
    });
    const items = [...used].sort((a, b) => a - b).slice(0, 40).map((i) => ({ label: names[i], mark: shape(i), colour: colour(i) }));
    if (e.proto_label.length) items.push({ label: e.what, mark: "star", colour: "var(--ink)" });
    return box.y + box.h + 12 + legend(c, box.y + box.h + 10, items);
  },
  rows() { const e = D.embeddings[own(this, "method")], many = e.label.length; return [["what", "class", "client", "x", "y"], ...e.planes[own(this, "plane")].map(([x, y], i) => (i < many ? ["sample", e.classes[e.label[i]], e.clients[e.client[i]], x, y] : [e.what, e.classes[e.proto_label[i - many]], e.clients[e.proto_client[i - many]], x, y]))]; },
  alt() { const e = D.embeddings[own(this, "method")]; return `${e.label.length} test samples of ${e.clients.length} clients in the ${e.space} of ${own(this, "method")}, in a plane` + (e.proto_label.length ? `, with ${e.proto_label.length} ${e.what}s as stars.` : "."); },
  caption() { const e = D.embeddings[own(this, "method")]; return `Each client's own model, seed ${e.seed}: ${e.space} of ${e.label.length} test samples of ${e.clients.length} clients` + (e.proto_label.length ? `; stars: ${e.what}s.` : ".") + " Distances in a t-SNE plane are not to be trusted over long ways. Drag to look closer."; },
});

const layers = () => [...new Set(shown(D.drift).flatMap((m) => Object.keys(D.drift[m])))]; // of one colour in all panels
const driftPanels = () => shown(D.drift).map((m) => ({ title: m, series: Object.entries(D.drift[m]).map(([layer, of]) => { const i = layers().indexOf(layer); return { name: layer, colour: colour(i), dash: dash(i), ...of }; }) }));
figure("space", "drift", {
  title: "How far prototypes moved",
  have: () => driftPanels().length > 0,
  draw: (c) => lines(c, driftPanels(), { fmt: (v) => v.toPrecision(2) }),
  rows: () => lineRows(driftPanels()),
  alt: () => driftPanels().map((p) => `${p.title}: ${p.series.map((one) => `${one.name} from ${one.mean[0].toPrecision(2)} to ${one.mean[one.mean.length - 1].toPrecision(2)}`).join(", ")}`).join(". "),
  caption: () => "Mean distance by which prototypes on the server moved in a round; of FedAli, those of each layer.",
});

figure("together", "collaboration", {
  title: "Who learns from whom",
  choices: [{ key: "method", label: "method", options: () => D.collaboration.map((g) => [g.method, g.method]) },
    { key: "class", label: "class", first: () => "", options: () => { const g = D.collaboration.find((o) => o.method === now.own["collaboration-method"]) || D.collaboration[0]; return Object.keys(g ? g.edges : {}).sort((a, b) => Boolean(a) - Boolean(b)).map((name) => [name, name || (Object.keys(g.edges).length > 1 ? "mean over classes" : "all")]); } }],
  have: () => D.collaboration.length > 0,
  read() {
    const g = D.collaboration.find((o) => o.method === own(this, "method")), n = g.who.length, table = range(n).map(() => Array(n).fill(null));
    for (const [i, j, w] of g.edges[own(this, "class")]) table[i][j] = w;
    const others = table.flatMap((row, i) => row.filter((w, j) => w !== null && i !== j));
    const top = table.map((row, i) => row.map((w, j) => [w, j]).filter(([w, j]) => w && j !== i).sort((a, b) => b[0] - a[0]).slice(0, n > 60 ? 1 : 3));
    return { g, n, table, top, low: Math.min(...others), high: Math.max(...others) };
  },
  draw(c) {
    const { g, n, table, top, low, high } = this.read(), beside = c.w > 760, half = beside ? c.w / 2 - 12 : c.w;
    const longest = Math.max(...g.who.map((name) => width(name))), edgeOf = n <= 60 ? Math.min(longest + 10, half * 0.25) : 8;
    const R = Math.min(half / 2 - edgeOf - 16, 190), [cx, cy] = [half / 2, R + edgeOf + 16];  // names begin 9 outside of R
    const spot = (i, r = R) => [cx + r * Math.cos((2 * Math.PI * i) / n - Math.PI / 2), cy + r * Math.sin((2 * Math.PI * i) / n - Math.PI / 2)];
    const lift = (w) => (high > low ? (w - low) / (high - low) : 1), links = [];
    top.forEach((teachers, i) => teachers.forEach(([w, j]) => {
      const [x0, y0] = spot(j, R - 7), [x1, y1] = spot(i, R - 9), pull = 0.25;
      const link = s("path", { d: `M${x0.toFixed(1)} ${y0.toFixed(1)}Q${(cx + (x0 + x1 - 2 * cx) * pull).toFixed(1)} ${(cy + (y0 + y1 - 2 * cy) * pull).toFixed(1)} ${x1.toFixed(1)} ${y1.toFixed(1)}`, fill: "none",
        stroke: "var(--accent)", "stroke-width": (0.6 + 3 * lift(w)).toFixed(2), opacity: 0.25 + 0.6 * lift(w), "marker-end": "url(#arrow)", "data-tip": `${g.who[i]} learns from ${g.who[j]}: ${w.toFixed(3)}` });
      links.push([link, i, j]);
      c.svg.append(link);
    }));
    c.svg.prepend(s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0 0L8 4L0 8Z", fill: "var(--accent)" }))));
    g.who.forEach((name, i) => {
      const [x, y] = spot(i), angle = (360 * i) / n - 90, flip = angle > 90 && angle < 270;
      const node = s("circle", { cx: x, cy: y, r: n > 60 ? 2.5 : 5, fill: "var(--c1)", "data-tip": `${name}\nlearns most from ${top[i].map(([w, j]) => `${g.who[j]} (${w.toFixed(3)})`).join(", ") || "nobody else"}` });
      node.onpointerenter = () => links.forEach(([link, a, b]) => link.setAttribute("visibility", a === i || b === i ? "visible" : "hidden"));
      node.onpointerleave = () => links.forEach(([link]) => link.setAttribute("visibility", "visible"));
      c.svg.append(node);
      const [tx, ty] = spot(i, R + 9);
      if (n <= 60) c.svg.append(say(tx, ty, squeeze(name, edgeOf), { "text-anchor": flip ? "end" : "start", "dominant-baseline": "middle", transform: `rotate(${flip ? angle + 180 : angle} ${tx} ${ty})`, fill: "var(--ink)" }));
    });
    const left = Math.min(longest + 14, half * 0.3), down = 2 * (R + edgeOf) + 32, box = { x: (beside ? half + 24 : 0) + left, y: beside ? 44 : down + 44, edge: beside ? half + 24 : 0 };
    box.w = (beside ? half : c.w) - left - 14;
    box.h = Math.min(box.w, 400);
    const stops = blues(), shade = (t) => along(stops, t);
    scaleBar(c, box.x + 50, box.y - 36, 90, shade, low.toFixed(3), high.toFixed(3));
    const below = grid(c, box, { rows: g.who, columns: g.who, value: (r, k) => table[r][k], shade: (v) => shade(lift(v)), word: (v) => v.toFixed(2), across: "learns from",
      told: (r, k) => `${g.who[r]} from ${g.who[k]}: ${table[r][k] === null ? "nothing, or not among its 20 strongest" : table[r][k].toFixed(4)}` });
    return Math.max(down, box.y + box.h + below) + 6;
  },
  rows() { const { g } = this.read(); return [["learner", "teacher", "class", "weight"], ...Object.entries(g.edges).flatMap(([name, of]) => of.map(([i, j, w]) => [g.who[i], g.who[j], name || "mean", w]))]; },
  alt() { const { g, top } = this.read(); return g.who.slice(0, 12).map((name, i) => `${name} learns most from ${top[i].length ? g.who[top[i][0][1]] : "nobody else"}`).join(", ") + (g.who.length > 12 ? ` and ${g.who.length - 12} more.` : "."); },
  caption() { const { g, table, high } = this.read(), self = Math.max(...table.map((row, i) => row[i] || 0)), mixed = !own(this, "class") && Object.keys(g.edges).length > 1; return `Weights of round ${g.round}, seed ${g.seed}${mixed ? ", mean over the classes a learner has: those whose classes few others have learn from few" : ""}. Arrows lead from each client's ${g.who.length > 60 ? "strongest teacher" : "three strongest teachers"} to it, the thicker, the stronger; the grid has all (a row learns, and adds up to 1). What a client takes from itself has no arrow${self > high ? `, and is up to ${self.toFixed(3)}, beyond the scale of colours` : ""}. Point at a client to see only its own.`; },
});

const groupsOf = (way) => [...new Set(shown(D.bytes).flatMap((m) => Object.keys(D.bytes[m][way])))];
const bytesOf = (g) => shown(D.bytes).reduce((t, m) => t + (D.bytes[m].down[g] || 0) + (D.bytes[m].up[g] || 0), 0);
const groupNames = () => [...new Set([...groupsOf("down"), ...groupsOf("up")])].sort((a, b) => bytesOf(b) - bytesOf(a));
figure("cost", "bytes", {
  title: "Bytes by group, of a whole run",
  have: () => groupNames().length > 0,
  draw(c) {
    const names = groupNames(), many = names.length > 8 ? 7 : 8, tint = (g) => (names.indexOf(g) < many ? colour(names.indexOf(g)) : "var(--faint)");
    const tall = bars(c, ["down", "up"].map((way) => ({ title: way === "down" ? "down, to clients" : "up, to the server", bars: shown(D.bytes).map((m) => ({ name: m, parts: Object.entries(D.bytes[m][way]).map(([g, v]) => [g, v, tint(g)]) })) })), (v) => `${big(v)}B`);
    return tall + legend(c, tall, [...names.slice(0, many), ...(names.length > many ? [names.slice(many).join(", ")] : [])].map((g) => ({ label: g, block: true, colour: tint(g) })));
  },
  rows: () => [["method", "way", "group", "bytes"], ...shown(D.bytes).flatMap((m) => ["down", "up"].flatMap((way) => Object.entries(D.bytes[m][way]).map(([g, v]) => [m, way, g, v])))],
  alt: () => shown(D.bytes).map((m) => `${m}: ${["down", "up"].map((way) => `${big(Object.values(D.bytes[m][way]).reduce((a, b) => a + b, 0))}B ${way}`).join(", ")}`).join(". "),
  caption: () => "As serialised, mean over seeds.",
});
const timePanels = () => [{ title: "seconds of local training a round, all clients", series: series(D.time) }];
figure("cost", "totals", {
  title: "Time and memory, of a whole run",
  have: () => shown(D.time).length > 0,
  draw: (c) => bars(c, [["seconds", "local training, in seconds", (v) => `${+v.toPrecision(3)} s`], ["peak", "memory of the largest process", (v) => `${big(v)}B`]].map(([key, title, fmt]) =>
    ({ title, fmt, bars: shown(D.time).map((m) => ({ name: m, parts: [["", D.time[m][key], look(m).colour]] })) }))),
  rows: () => [["method", "seconds", "peak bytes"], ...shown(D.time).map((m) => [m, D.time[m].seconds, D.time[m].peak])],
  alt: () => shown(D.time).map((m) => `${m}: ${D.time[m].seconds.toFixed(1)} s, ${big(D.time[m].peak)}B`).join(". "),
  caption: () => "Seconds are summed over clients; both are means over seeds.",
});
figure("cost", "time", {
  title: "Time, round by round",
  have: () => shown(D.time).some((m) => D.time[m].round.length > 1),
  draw: (c) => lines(c, timePanels(), { fmt: (v) => `${+v.toPrecision(2)}` }),
  rows: () => lineRows(timePanels()),
  alt: () => timePanels()[0].series.map((one) => `${one.name}: last round ${one.mean[one.mean.length - 1].toFixed(2)} s`).join(". "),
  caption: () => "Round 0 is getting ready; the one after the last is finishing, where there is any.",
});

// ---------------------------------------------------------------- tables

const number = (text) => parseFloat(String(text).replace("−", "-").replace(",", ""));
/** A table whose heads sort it; how it was sorted is remembered by its title, so that news do not undo it. */
function table(title, header, rows) {
  const text = (row, i) => String(row[i].text ?? row[i]), numeric = (i) => i > 0 && rows.some((row) => !isNaN(number(text(row, i))));
  const longest = (i) => Math.max(0, ...rows.map((row) => text(row, i).length));
  const body = h("tbody"), words = header.map((_, i) => (numeric(i) || longest(i) < 4 ? null : longest(i) > 24 ? "words long" : "words"));
  const fill = (order) => body.replaceChildren(...order.map((row) => h("tr", {}, ...row.map((cell, i) =>
    i ? h("td", { class: cell.lost ? "lost" : words[i], title: cell.lost ? "worse than alone" : null }, text(row, i)) : h("th", { scope: "row" }, cell)))));
  const heads = header.map((name, i) => {
    const head = h("th", { scope: "col", class: words[i] }, h("button", { type: "button" }, name));
    head.firstChild.onclick = () => {
      const [before, sign] = now.sorted[title] || [];
      now.sorted[title] = [i, before === i ? -sign : i ? -1 : 1]; // numbers from the highest, names from A
      sort();
    };
    return head;
  });
  const sort = () => {
    const [i, sign] = now.sorted[title], rank = (row) => (isNaN(number(text(row, i))) ? Infinity * sign : number(text(row, i)));
    heads.forEach((head, k) => (k === i ? head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort")));
    fill([...rows].sort((a, b) => sign * (numeric(i) ? rank(a) - rank(b) || 0 : text(a, i).localeCompare(text(b, i), undefined, { numeric: true }))));
  };
  fill(rows);
  if (now.sorted[title] && now.sorted[title][0] < header.length) sort();
  const whole = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body));
  whole.onscroll = () => hint(whole);
  sized.observe(whole);
  return whole;
}
/** An edge that fades says that there is more to the right. */
const hint = (whole) => whole.classList.toggle("more", whole.scrollWidth - whole.clientWidth - whole.scrollLeft > 2);
const sized = new ResizeObserver((changes) => changes.forEach((one) => hint(one.target)));
const plain = (rows) => rows.map((row) => row.map((cell) => cell.text ?? cell));
function tableCard(title, header, rows, caption) {
  const save = h("button", { type: "button", "aria-label": `${title}: download numbers` }, "CSV");
  save.onclick = () => download(`${title.toLowerCase().replace(/\W+/g, "-")}.csv`, "text/csv", csv([header, ...plain(rows)]));
  return h("div", { class: "card" }, h("div", { class: "head" }, h("h3", {}, title), h("span", { class: "tools" }, save)), table(title, header, rows), h("p", { class: "note" }, caption));
}
const MOST_ROWS = 1000;
/** A table of every dataset's clients: one name may be two people. */
function clientTables() {
  return Object.keys(D.people[now.view] || {}).map(clientTable).filter(Boolean);
}
function clientTable(dataset) {
  const methods = shown((D.final[now.view] || {})[now.metric]).filter((m) => D.dataset[m] === dataset), who = D.people[now.view][dataset];
  if (!methods.length || who.length < 2) return null;
  const gain = Object.fromEntries(methods.map((m) => [m, gains(m)])), of = Object.fromEntries(methods.map((m) => [m, final(m)]));
  const all = who.map((name, i) => {
    const about = (D.about[dataset] || {})[name] || { traits: "", train: "–", test: "–" };
    return [name, about.traits, String(about.train), String(about.test), ...methods.map((m) => {
      const bad = gain[m] && known(gain[m][i]) && lost(gain[m][i]);
      return { text: score(of[m][i]) + (bad ? " ▾" : ""), lost: bad };
    })];
  });
  const traits = all.some((row) => row[1]), rows = (traits ? all : all.map((row) => [row[0], ...row.slice(2)])).slice(0, MOST_ROWS);
  const more = all.length > rows.length ? ` The first ${MOST_ROWS} of ${all.length} clients.` : "", names = methods.map((m) => (several() ? m.replace(` · ${dataset}`, "") : m));
  return tableCard(`Every client in numbers${several() ? `: ${dataset}` : ""}`, ["client", ...(traits ? ["what it is"] : []), "train", "test", ...names], rows,
    `${now.view} ${now.metric}, mean over seeds. ▾: worse than Local.${more}`);
}

// ---------------------------------------------------------------- the page

function frame() {
  $("name").textContent = D.name;
  const unfinished = D.progress.filter((run) => run.done < run.rounds);
  $("facts").replaceChildren(...D.facts.map((fact) => h("li", {}, fact)),
    ...(D.synthetic ? [h("li", { class: "warn" }, "synthetic data")] : []),
    ...(unfinished.length ? [h("li", { class: D.live ? "live" : "warn" }, `${unfinished.length} of ${D.progress.length} runs unfinished`)] : D.live && D.progress.length ? [h("li", {}, "all runs are done")] : []));
  $("words").replaceChildren(...[...D.summary.slice(0, 2), ...D.verdict, ...D.summary.slice(2)].map((text, i) => h("p", { class: i === 1 ? "lead" : null }, text)));
  $("progress").replaceChildren(...(D.live || unfinished.length ? D.progress : []).map((run) => h("div", { class: "bar" },
    h("span", {}, `${run.method}, seed ${run.seed}`), h("progress", { value: run.done, max: run.rounds, "aria-label": `${run.method}, seed ${run.seed}` }), h("span", {}, `${run.done} / ${run.rounds}`))));
  $("tables").replaceChildren($("tables").firstElementChild, ...D.tables.map((t) => tableCard(t.title, t.header, t.rows, `${t.caption}.`)),
    ...D.groups.map((g) => tableCard(`Groups of ${g.method}`, ["group", "clients", "who"], Object.entries(g.groups).map(([n, who]) => [n, String(who.length), who.join(", ")]), `Round ${g.round}, seed ${g.seed}.`)));
  const views = Object.keys(D.views);
  if (!views.includes(now.view)) now.view = views[0] || "";
  if (!D.metrics.includes(now.metric)) now.metric = D.metrics[0] || "";
  for (const [id, names] of [["view", views], ["metric", D.metrics]]) {
    $(id).replaceChildren(...names.map((name) => h("option", { value: name, selected: name === now[id] ? "" : null }, name)));
    $(id).parentElement.hidden = names.length < 2;
  }
  $("methods").replaceChildren(...D.methods.map((m) => {
    const { colour: stroke, dash: pattern } = look(m);
    const button = h("button", { type: "button", "aria-pressed": String(!now.hidden.has(m)) }, s("svg", { width: 20, height: 6, "aria-hidden": "true" }, s("line", { x1: 0, x2: 20, y1: 3, y2: 3, stroke, "stroke-width": 3, "stroke-dasharray": pattern })), m);
    button.onclick = () => { now.hidden.has(m) ? now.hidden.delete(m) : now.hidden.add(m); if (now.hidden.size === D.methods.length) now.hidden.clear(); render(); };
    return button;
  }));
  $("choices").hidden = !views.length;
  $("left").replaceChildren(...D.left_out.map(([what, why]) => h("li", {}, h("strong", {}, what), `: ${why}.`)));
  $("missing").hidden = !D.left_out.length;
  $("recipe").textContent = D.recipe ? JSON.stringify(D.recipe, null, 2) : "";
  $("recipe").parentElement.hidden = !D.recipe;
  $("version").textContent = `Made by fedsense ${D.version}. Figures can be saved as SVG, and their numbers as CSV.`;
}
function render() {
  frame();
  figures.forEach(paint);
  document.querySelectorAll("#clients > .card.table").forEach((old) => old.remove());
  for (const one of clientTables()) { one.classList.add("table"); $("clients").append(one); }
  const sections = [...document.querySelectorAll("main > section")];
  for (const section of sections.filter((one) => one.querySelector("figure"))) section.hidden = ![...section.querySelectorAll("figure, .table")].some((one) => !one.hidden);
  $("tables").hidden = !D.tables.length;
  $("contents").replaceChildren(...sections.filter((one) => !one.hidden).map((one) => h("a", { href: `#${one.id}` }, one.querySelector("h2").textContent)));
}
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try { chosen = localStorage.getItem("fedsense-theme"); } catch { /* not allowed here */ }
function theme(name) { root.dataset.theme = name || chosen || (dark.matches ? "dark" : "light"); }
$("theme").onclick = () => {
  chosen = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("fedsense-theme", chosen); } catch { /* not allowed here */ }
  theme();
  figures.forEach(paint);
};
dark.onchange = () => { theme(); figures.forEach(paint); };
for (const id of ["view", "metric"]) $(id).onchange = (event) => { now[id] = event.target.value; render(); };
let wide = 0;
new ResizeObserver(() => { if (wide && wide !== document.body.clientWidth) figures.forEach(paint); wide = document.body.clientWidth; }).observe(document.body);
addEventListener("beforeprint", () => { now.printing = true; theme("light"); figures.forEach(paint); });
addEventListener("afterprint", () => { now.printing = false; theme(); figures.forEach(paint); });
theme();
render();
root.dataset.ready = "yes";

// While a run goes on: ask for news; the answer is empty where there are none.
async function ask() {
  try {
    const answer = await fetch(`data.json?have=${D.stamp}`);
    if (answer.status === 200) { D = await answer.json(); render(); }
    root.dataset.connection = "yes";
  } catch { root.dataset.connection = "no"; }
  setTimeout(ask, 1500);
}
if (D.live) setTimeout(ask, 1500);
