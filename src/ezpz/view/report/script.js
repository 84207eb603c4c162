// What the page can do beyond showing its pictures: values under the pointer, log scale, smoothing, themes, CSV.
// Text from the run is only ever set as textContent. The last line tells that all charts are ready.
"use strict";
const root = document.documentElement;
const NS = "http://www.w3.org/2000/svg";
const make = (parent, tag, attributes = {}, text) => {
  const element = parent.namespaceURI === NS || tag === "svg" ? document.createElementNS(NS, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
};
const summed = (steps) => { let at = 0; return steps.map((step) => (at += step)); };

const charts = JSON.parse(document.getElementById("data").textContent).map((data, index) => {
  const figure = document.querySelectorAll("figure[data-chart]")[index];
  const steps = data.steps && summed(data.steps);
  const lines = data.lines.map((line) => ({
    name: line.name, c: line.c, y: line.y, x: line.x ? summed(line.x) : steps,
    mx: line.mx ? summed(line.mx) : null, my: line.my,
  }));
  return { ...data, steps, lines, figure, svg: figure.querySelector("svg"), log: false, index };
});
let smoothing = 0;

// ---- numbers

const UNITS = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const short = (value) => {
  const size = Math.abs(value);
  if (size < 1e4 || size >= 1e18) return size !== 0 && (size < 1e-4 || size >= 1e18) ? value.toExponential() : String(+value.toPrecision(6));
  const [unit, letter] = UNITS.find(([least]) => size >= least);
  return +(value / unit).toPrecision(6) + letter;
};
const exact = (value) => (value === null || value === undefined ? "–" : Math.abs(value) < 1e15 && Math.abs(value) >= 1e-4 ? value.toLocaleString("en", { maximumSignificantDigits: 6 }) : String(value));
const ticks = (low, high) => {
  const raw = (high - low) / 6;
  if (!isFinite(raw) || raw <= 0) return [[low, low.toPrecision(3)], [high, high.toPrecision(3)]];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw * (1 - 1e-9));
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), plain = step >= 1e-5 && Math.max(-low, high) < 1e4;
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n <= Math.floor(high / step + 1e-9); n++) found.push([n * step, plain ? (n * step).toFixed(digits) : short(n * step)]);
  return found.length > 1 ? found : [[low, short(low)], [high, short(high)]];
};
const logTicks = (low, high) => {
  const every = Math.ceil((high - low) / 7), found = [];
  for (let n = Math.floor(low); n <= high; n++)
    for (const factor of high - low < 2.5 ? [1, 2, 5] : [1]) {
      const at = n + Math.log10(factor);
      if (at >= low && at <= high && n % every === 0) found.push([at, short(factor * 10 ** n)]);
    }
  return found.length > 1 ? found : [[low, short(10 ** low)], [high, short(10 ** high)]];
};

// ---- lines

const smooth = (x, y, length) => {
  // Weights that fall off exponentially to both sides, measured in steps: no lag, and no matter how densely points lie.
  const memory = (smoothing / 100) ** 2 * 0.1 * length;
  const sweep = (order) => {
    const sums = Array(y.length);
    let sum = 0, weight = 0, before = null;
    for (const i of order) {
      const keep = before === null ? 0 : Math.exp(-Math.abs(x[i] - before) / memory);
      sum *= keep, weight *= keep, before = x[i];
      if (y[i] !== null) sum += y[i], weight += 1;
      sums[i] = [sum, weight];
    }
    return sums;
  };
  const order = [...y.keys()], there = sweep(order), back = sweep(order.reverse());
  return y.map((now, i) => (now === null ? null : (there[i][0] + back[i][0] - now) / (there[i][1] + back[i][1] - 1)));
};
const path = (x, y, place) => {
  let text = "", open = false, alone = false;
  y.forEach((value, i) => {
    const at = value === null ? null : place(x[i], value);
    if (at === null) { text += alone ? "h0" : ""; open = alone = false; return; }
    text += `${open ? " " : "M"}${at[0].toFixed(1)},${at[1].toFixed(1)}`;
    alone = !open;
    open = true;
  });
  return text + (alone ? "h0" : "");
};
const positive = (chart) => chart.lines.flatMap((line) => line.y).filter((value) => value !== null && value > 0);
const scale = (chart) => {
  const [, , width, height] = chart.box, [x0, x1] = chart.x;
  let [y0, y1] = chart.y;
  if (chart.log) {
    const values = positive(chart).map(Math.log10);
    y0 = values.reduce((a, b) => Math.min(a, b)), y1 = values.reduce((a, b) => Math.max(a, b));
    const room = (y1 - y0) * 0.05 || 0.1;
    y0 -= room, y1 += room;
  }
  const place = (x, y) => {
    if (chart.log && !(y > 0)) return null;
    const share = ((chart.log ? Math.log10(y) : y) / 2 - y0 / 2) / (y1 / 2 - y0 / 2);
    return [(x - x0) / (x1 - x0) * width, (1 - Math.min(5, Math.max(-4, share))) * height];
  };
  return { y0, y1, place };
};
const draw = (chart) => {
  if (chart.kind !== "lines" || !chart.y) return;
  const [left, top, width, height] = chart.box;
  const { y0, y1, place } = chart.scale = scale(chart);
  const axis = chart.svg.querySelector(".ya"), plot = chart.svg.querySelector(".plot");
  axis.replaceChildren();
  for (const [at, label] of (chart.log ? logTicks : ticks)(y0, y1)) {
    const y = top + (1 - (at / 2 - y0 / 2) / (y1 / 2 - y0 / 2)) * height;
    make(axis, "path", { class: "rule", d: `M${left},${y.toFixed(1)}h${width}` });
    make(axis, "text", { x: left - 8, y: (y + 4).toFixed(1), "text-anchor": "end" }, label);
  }
  plot.replaceChildren();
  if (chart.band) {
    const [low, high] = chart.band.map((i) => path(chart.lines[i].x, chart.lines[i].y, place).replaceAll("h0", "").split(/[M ]/).filter(Boolean));
    make(plot, "path", { class: "band", d: `M${high.concat(low.reverse()).join(" ")}z` });
  }
  chart.lines.forEach((line) => {
    const raw = path(line.x, line.y, place);
    make(plot, "path", { class: `line ${line.c}${smoothing ? " faint" : ""}`, d: raw });
    if (line.y.length <= 40) make(plot, "path", { class: `dots ${line.c}`, d: line.y.map((y, n) => (y === null ? "" : path([line.x[n]], [y], place))).join("") });
    if (smoothing && line.y.length > 2) {
      const [x, y] = line.mx ? [line.mx, line.my] : [line.x, line.y];
      make(plot, "path", { class: `line ${line.c}`, d: path(x, smooth(x, y, chart.x[1] - chart.x[0]), place) });
    }
  });
};

// ---- the pointer

const nearest = (steps, step) => {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1; else high = middle;
  }
  return low > 0 && step - steps[low - 1] <= steps[low] - step ? low - 1 : low;
};
const clear = (chart) => { chart.over?.remove(); chart.tip?.remove(); chart.over = chart.tip = null; };
const clearAll = () => charts.forEach(clear);
const cross = (chart, step, row) => {
  chart.over?.remove();
  const [left, top, width, height] = chart.box, [x0, x1] = chart.x;
  const place = chart.scale?.place;
  const over = (chart.over = make(chart.svg, "g", { class: "hover" }));
  const x = left + (step - x0) / (x1 - x0) * width;
  make(over, "path", { class: "cross", d: `M${x.toFixed(1)},${top}v${height}` });
  if (chart.kind === "heat" && row !== undefined) {
    const tall = height / chart.lines.length;
    make(over, "rect", { class: "cell", x: left, y: top + row * tall, width, height: tall });
  }
  if (chart.kind === "lines" && place)
    chart.lines.forEach((line) => {
      const n = nearest(line.x, step), at = line.y[n] === null || line.y[n] === undefined ? null : place(line.x[n], line.y[n]);
      if (at && at[1] >= 0 && at[1] <= height) make(over, "circle", { class: `at ${line.c}`, r: 4, cx: left + at[0], cy: top + at[1] });
    });
  return x;
};
const values = (chart, step, row) => {
  if (chart.kind === "heat") {
    const line = chart.lines[row], n = nearest(chart.steps, step);
    const column = chart.lines.map((each) => each.y[n]).filter((value) => value !== null).sort((a, b) => a - b);
    const middle = column[column.length >> 1], ratio = line.y[n] === null || !(middle > 0) ? "" : ` (${(line.y[n] / middle).toFixed(2)} x median)`;
    return [[chart.together > 1 ? `${line.name} to ${+line.name.slice(5) + chart.together - 1}` : line.name, exact(line.y[n]) + ratio, "heat"]];
  }
  return chart.lines.map((line) => {
    const n = nearest(line.x, step), far = line.x[n] !== step && chart.kind === "lines" ? ` at ${line.x[n].toLocaleString("en")}` : "";
    return [line.name, exact(line.y[n]) + (chart.kind === "shares" ? ` ${chart.unit}` : "") + far, line.c];
  });
};
const point = (chart, wanted, row) => {
  // The crosshair stands at a recorded step, in all charts at once: what did the others do at this spike?
  const known = chart.steps ?? chart.lines.map((line) => line.x[nearest(line.x, wanted)]).filter((x) => x !== undefined);
  if (!known.length) return;
  const step = chart.steps ? chart.steps[nearest(chart.steps, wanted)] : known.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
  chart.at = step;
  for (const other of charts) if (other !== chart && other.x) { clear(other); if (other.figure.offsetParent) cross(other, step); }
  const x = cross(chart, step, row);
  chart.tip?.remove();
  const tip = (chart.tip = make(chart.figure, "div", { class: "tip", role: "status" }));
  make(tip, "div", {}, `${chart.axis || "step"} ${step.toLocaleString("en")}`);
  const list = make(tip, "ul");
  const told = values(chart, step, row);
  for (const [name, value, kind] of chart.kind === "shares" ? told.reverse() : told) {
    const item = make(list, "li");
    make(item, "i", { class: kind });
    make(item, "span", {}, name);
    make(item, "b", {}, value);
  }
  const ratio = chart.svg.clientWidth / chart.svg.viewBox.baseVal.width, side = 14 + x * ratio;
  tip.style.top = `${chart.svg.getBoundingClientRect().top - chart.figure.getBoundingClientRect().top + 10}px`;
  tip.style.left = `${side + 14 + tip.offsetWidth > chart.figure.clientWidth ? Math.max(4, side - tip.offsetWidth - 14) : side + 14}px`;
};
const listen = (chart) => {
  const [left, top, width, height] = chart.box;
  chart.svg.addEventListener("pointermove", (event) => {
    const place = chart.svg.getBoundingClientRect(), ratio = chart.svg.viewBox.baseVal.width / place.width;
    const x = ((event.clientX - place.left) * ratio - left) / width, y = ((event.clientY - place.top) * ratio - top) / height;
    if (x < -0.02 || x > 1.02 || y < 0 || y > 1) return clearAll();
    point(chart, chart.x[0] + Math.min(1, Math.max(0, x)) * (chart.x[1] - chart.x[0]), Math.min(chart.lines.length - 1, Math.floor(y * chart.lines.length)));
  });
  chart.svg.addEventListener("pointerleave", clearAll);
  chart.svg.addEventListener("blur", clearAll);
  chart.svg.tabIndex = 0;
  chart.svg.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const steps = chart.steps ?? chart.lines.reduce((a, b) => (b.x.length > a.x.length ? b : a)).x;
    point(chart, steps[Math.min(steps.length - 1, Math.max(0, chart.at === undefined ? 0 : nearest(steps, chart.at) + way))], 0);
  });
};

// ---- controls

const csv = (chart) => {
  const table = (rows) => rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
  const cell = (value) => (value === null || value === undefined ? "" : typeof value === "number" ? String(value) : `"${value.replaceAll('"', '""')}"`);
  if (chart.kind === "stages") return table([["stage", "seconds"], ...chart.lines.map((line) => [line.name, line.y[0]])]);
  const rows = new Map();
  chart.lines.forEach((line, i) => line.x.forEach((step, n) => {
    if (!rows.has(step)) rows.set(step, Array(chart.lines.length).fill(null));
    rows.get(step)[i] = line.y[n];
  }));
  const sorted = [...rows].sort(([a], [b]) => a - b).map(([step, row]) => [step, ...row]);
  return table([[chart.axis || "step", ...chart.lines.map((line) => line.name)], ...sorted]);
};
const save = (chart) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([csv(chart)], { type: "text/csv" }));
  link.download = `${chart.figure.id}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const equip = (chart) => {
  const caption = chart.figure.querySelector("figcaption");
  if (chart.kind === "lines" && positive(chart).length) {
    const button = make(caption, "button", { type: "button", class: "log", "aria-pressed": "false", title: "logarithmic axis" }, "log");
    button.addEventListener("click", () => {
      chart.log = !chart.log;
      button.setAttribute("aria-pressed", chart.log);
      clearAll();
      draw(chart);
    });
  }
  const button = make(caption, "button", { type: "button", class: "csv", title: "save the points of this chart" }, "CSV");
  button.addEventListener("click", () => save(chart));
  if (chart.x) listen(chart);
  if (chart.kind === "lines" && chart.y) chart.scale = scale(chart);
};

charts.forEach(equip);
const tools = document.getElementById("tools");
if (charts.some((chart) => chart.kind === "lines")) {
  const label = make(tools, "label", {}, "smoothing");
  const slider = make(label, "input", { type: "range", min: 0, max: 100, value: 0, id: "smoothing" });
  slider.addEventListener("input", () => { smoothing = +slider.value; charts.forEach(draw); });
}
const theme = make(tools, "button", { type: "button", id: "theme", title: "light or dark" }, "◐ theme");
theme.addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
root.dataset.ready = charts.length;
