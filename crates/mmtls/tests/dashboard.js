// Draws DATA.dashboard with DATA.answers as Grafana lays panels out: 24 columns of cells of 30 pixels with gaps of 8, one
// column in narrow windows, its dark colours, its units. What Grafana leaves to defaults is its default here, too: a
// stat panel without thresholds is red from 80 on. Refuses what it does not know: units, colours, kinds of panels.

const COLOURS = { green: "#73bf69", yellow: "#fade2a", blue: "#5794f2", orange: "#ff9830", red: "#f2495c", purple: "#b877d9",
  "dark-red": "#c4162a", text: "#ccccdc", transparent: "transparent" };
const PALETTE = ["#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0", "#37872d", "#fade2a"];
const STEPS = [{ value: null, color: "green" }, { value: 80, color: "red" }];
const SCALES = {
  none: [1000, [""]], short: [1000, ["", " K", " Mil", " Bil"]], cps: [1000, [" c/s", "K c/s", "M c/s"]],
  bps: [1000, [" b/s", " kb/s", " Mb/s", " Gb/s"]], pps: [1000, [" p/s", " kp/s", " Mp/s"]],
  bytes: [1024, [" B", " KiB", " MiB", " GiB"]],
};
const TIMES = [[1e-6, 1e-9, " ns"], [1e-3, 1e-6, " µs"], [1, 1e-3, " ms"], [60, 1, " s"], [3600, 60, " mins"], [86400, 3600, " hours"], [Infinity, 86400, " days"]];
const STYLE = `
  body { background: #111217; color: #ccccdc; font: 14px Inter, "DejaVu Sans", sans-serif; margin: 16px; }
  main { position: relative; }
  section { background: #181b1f; border: 1px solid #2a2c33; border-radius: 2px; box-sizing: border-box; overflow: hidden; display: flex; flex-direction: column; }
  section.row { background: none; border: none; }
  h6 { font: 500 14px/32px Inter, "DejaVu Sans", sans-serif; margin: 0; padding: 0 8px; height: 32px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; flex: none; }
  h6 span { color: #8e8e99; font-size: 12px; }
  .stat { flex: 1; position: relative; } .stat b { position: relative; display: block; text-align: center; font-weight: 500; white-space: nowrap; overflow: hidden; }
  .stat canvas { position: absolute; left: 0; bottom: 0; }
  .plot { flex: 1; min-height: 0; }
  .legend { flex: none; max-height: 35%; overflow: auto; padding: 0 8px 4px; font-size: 12px; line-height: 18px; }
  .legend span { display: inline-block; white-space: nowrap; margin-right: 12px; } .legend i { display: inline-block; width: 14px; height: 4px; border-radius: 2px; margin-right: 6px; vertical-align: middle; }`;

const element = (name, parent, text = "", kind = "") => parent.appendChild(Object.assign(document.createElement(name), { textContent: text, className: kind }));

function known(table, name) {
  if (!(name in table)) throw new Error(`not known: ${name}`);
  return table[name];
}

/** Three digits that count, as Grafana has them. */
function digits(number, decimals) {
  if (decimals !== undefined || number === 0) return number.toFixed(decimals ?? 0);
  return String(Number(number.toFixed(Math.max(0, Math.min(3, 2 - Math.floor(Math.log10(Math.abs(number))))))));
}

function format(number, unit = "short", decimals = undefined) {
  if (number === null || !Number.isFinite(number)) return String(number);
  if (unit === "percentunit") return `${digits(100 * number, decimals)}%`;
  if (unit === "s") {
    if (number === 0) return "0 s";
    const [, of, name] = TIMES.find(([below]) => Math.abs(number) < below);
    return digits(number / of, decimals) + name;
  }
  const [base, names] = known(SCALES, unit);
  let at = 0;
  while (Math.abs(number) >= base && at < names.length - 1) [number, at] = [number / base, at + 1];
  return digits(number, decimals) + names[at];
}

/** All series of a panel: name, colour, samples at the times of `times`. */
function series(panel, times) {
  const all = [];
  for (const target of panel.targets) {
    for (const { metric, values, value } of DATA.answers[panel.id + target.refId]) {
      // Without a legend, Grafana tells all labels.
      const labels = JSON.stringify(metric).replace(/"(\w+)":/g, "$1=");
      let name = target.legendFormat ? target.legendFormat.replace(/{{(\w+)}}/g, (_, label) => metric[label] ?? "") : labels;
      const at = new Map((values ?? [value]).map(([time, text]) => [time, Number(text)]));
      let colour = PALETTE[all.length % PALETTE.length];
      const fixed = (color) => color?.mode === "fixed" ? known(COLOURS, color.fixedColor) : undefined;
      colour = fixed(panel.fieldConfig.defaults.color) ?? colour;
      for (const { matcher, properties } of panel.fieldConfig.overrides.filter((it) => it.matcher.options === name)) {
        if (matcher.id !== "byName") throw new Error(matcher.id);
        for (const { id, value } of properties) {
          if (id === "color") colour = fixed(value);
          else if (id === "displayName") name = value;
          else throw new Error(id);
        }
      }
      const samples = times.map((time) => at.get(time) ?? null).map((it) => Number.isFinite(it) ? it : null);
      all.push({ name, metric, colour, samples, last: [...at.values()].at(-1) });
    }
  }
  return all;
}

function stat(panel, box, times) {
  const { defaults } = panel.fieldConfig;
  const all = series(panel, times);
  const place = element("div", box, "", "stat");
  const { width, height } = place.getBoundingClientRect();
  const thresholds = defaults.thresholds?.steps ?? STEPS;
  const values = all.length ? all : [{ name: "", last: undefined }];
  for (const { name, last, samples } of values) {
    const step = thresholds.filter(({ value }) => value === null || last >= value).at(-1);
    const colour = defaults.color?.mode === "fixed" ? known(COLOURS, defaults.color.fixedColor) : known(COLOURS, step.color);
    if ((panel.options.graphMode ?? "area") === "area" && samples) {
      const canvas = element("canvas", place);
      Object.assign(canvas, { width, height: height / 2 });
      const [pen, most] = [canvas.getContext("2d"), Math.max(...samples, 1e-9)];
      Object.assign(pen, { strokeStyle: colour, globalAlpha: 0.5 });
      samples.forEach((it, at) => pen.lineTo(at * width / (samples.length - 1), (height / 2 - 2) * (1 - it / most)));
      pen.stroke();
    }
    const number = last === undefined ? defaults.noValue ?? "No data" : format(last, defaults.unit, defaults.decimals);
    const mode = panel.options.textMode ?? "auto";
    const text = mode === "name" ? name : mode === "auto" && values.length > 1 ? `${name} ${number}` : number;
    const b = element("b", place, text);
    const size = Math.min(0.6 * height / values.length, width / (0.65 * text.length));
    Object.assign(b.style, { color: colour, fontSize: `${size}px`, lineHeight: `${height / values.length}px` });
  }
}

function axes(unit, decimals) {
  const axis = { stroke: "#8e8e99", font: "12px sans-serif", grid: { stroke: "#24262c", width: 1 }, ticks: { show: false } };
  const clock = (time) => new Date(1000 * time).toISOString().slice(11, 19);
  return [{ ...axis, space: 80, values: (_, all) => all.map(clock) }, { ...axis, size: 76, values: (_, all) => all.map((it) => it === null ? null : format(it, unit, decimals)) }];
}

function lines(panel, box, times) {
  const { defaults } = panel.fieldConfig;
  const { custom = {} } = defaults;
  const all = series(panel, times);
  const [place, legend] = [element("div", box, "", "plot"), element("div", box, "", "legend")];
  for (const { name, colour } of all) element("i", element("span", legend)).after(name), legend.lastChild.firstChild.style.background = colour;
  if (!all.length) return place.append("No data");
  const isStacked = custom.stacking?.mode === "normal";
  let below = times.map(() => 0);
  const data = all.map(({ samples }) => isStacked ? below = below.map((it, at) => it + (samples[at] ?? 0)) : samples);
  const bands = isStacked ? all.slice(1).map((_, at) => ({ series: [at + 2, at + 1] })) : [];
  const limits = custom.thresholdsStyle?.mode === "dashed" ? defaults.thresholds.steps : [];
  const { width, height } = place.getBoundingClientRect();
  const alpha = Math.round(2.55 * (custom.fillOpacity ?? 0)).toString(16).padStart(2, "0");
  // Of nothing but zeros Grafana shows the axis up to 100, unless it is told a soft maximum.
  const range = (_, least, most) => [defaults.min ?? least, defaults.max ?? (Math.max(1.1 * most, custom.axisSoftMax ?? 0) || 100)];
  const distr = custom.scaleDistribution?.type === "log" ? 3 : 1;
  new uPlot({
    width, height, bands, axes: axes(defaults.unit, defaults.decimals), legend: { show: false }, cursor: { show: false }, scales: { x: { range: () => [DATA.from, DATA.to] }, y: { range, distr } },
    series: [{}, ...all.map(({ colour }) => ({ stroke: colour, width: custom.lineWidth ?? 1, fill: colour + alpha, points: { show: custom.showPoints === "never" ? false : undefined } }))],
    hooks: { draw: [({ ctx, bbox, valToPos, scales }) => limits.filter(({ value }) => value !== null && value <= scales.y.max).forEach(({ value, color }) => {
      ctx.save();
      Object.assign(ctx, { strokeStyle: known(COLOURS, color), lineWidth: 1 });
      ctx.setLineDash([10, 10]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, valToPos(value, "y", true));
      ctx.lineTo(bbox.left + bbox.width, valToPos(value, "y", true));
      ctx.stroke();
      ctx.restore();
    })] },
  }, [times, ...data], place);
}

const bound = ({ metric }) => metric.le === "+Inf" ? Infinity : Number(metric.le);

/** Buckets of a histogram, less those below them: a row each. */
function heatmap(panel, box, times) {
  const rows = series(panel, times).sort((a, b) => bound(a) - bound(b));
  const place = element("div", box, "", "plot");
  const { width, height } = place.getBoundingClientRect();
  const cells = rows.map(({ samples }, at) => samples.map((it, time) => Math.max(0, it - (at ? rows[at - 1].samples[time] : 0))));
  const most = Math.max(...cells.flat(), 1e-9);
  const unit = panel.options.yAxis.unit;
  const [, y] = axes(unit);
  const names = (_, all) => all.map((it) => rows[it - 1] ? Number.isFinite(bound(rows[it - 1])) ? format(bound(rows[it - 1]), unit) : "+Inf" : format(0, unit));
  new uPlot({
    width, height, axes: [axes(unit)[0], { ...y, splits: () => [0, ...rows.map((_, at) => at + 1)].filter((it) => it % 2 === 0), values: names }],
    legend: { show: false }, cursor: { show: false }, scales: { x: { range: () => [DATA.from, DATA.to] }, y: { range: () => [0, rows.length] } }, series: [{}, { stroke: "transparent" }],
    hooks: { draw: [({ ctx, valToPos }) => cells.forEach((row, at) => row.forEach((it, time) => {
      if (it <= (panel.options.filterValues?.le ?? 1e-9)) return;
      const [left, right] = [0, 1].map((more) => valToPos(times[time] + more * (times[1] - times[0]), "x", true));
      const [top, bottom] = [1, 0].map((more) => valToPos(at + more, "y", true));
      ctx.fillStyle = `hsl(${32 - 20 * it / most} 95% ${30 + 45 * Math.sqrt(it / most)}%)`;
      ctx.fillRect(left, top, right - left - 1, bottom - top - 1);
    })) ] },
  }, [times, times.map(() => null)], place);
}

/** What does not fit in its place: titles, values, legends that have to be scrolled. */
const clipped = () => [...document.querySelectorAll("h6, b, .legend")].filter((it) => it.scrollWidth > it.clientWidth + 1 || (it.className === "legend" && it.scrollHeight > it.clientHeight + 1)).map((it) => it.textContent);

function draw() {
  element("style", document.head, STYLE);
  const main = element("main", document.body);
  const [width, isNarrow] = [main.clientWidth, innerWidth < 769];
  const step = Math.max(...Object.values(DATA.answers).flat().map(({ values }) => values ? values[1]?.[0] - values[0][0] : 0).filter((it) => it > 0)) || 1;
  const times = [];
  for (let time = DATA.from; time <= DATA.to; time += Math.min(step, 2)) times.push(time);
  let bottom = 0;
  for (const panel of DATA.dashboard.panels) {
    const { x, y, w, h } = panel.gridPos;
    const cell = (width + 8) / 24;
    const box = element("section", main, "", panel.type);
    const [left, top, wide] = isNarrow ? [0, bottom, width] : [x * cell, y * 38, w * cell - 8];
    Object.assign(box.style, { position: "absolute", left: `${left}px`, top: `${top}px`, width: `${wide}px`, height: `${h * 38 - 8}px` });
    bottom = Math.max(bottom, top + h * 38);
    element("h6", box, panel.type === "row" ? `⌄ ${panel.title}` : panel.title);
    if (panel.description) element("span", box.firstChild, " (i)").title = panel.description;
    known({ row: () => {}, stat, timeseries: lines, heatmap }, panel.type)(panel, box, times);
  }
  main.style.height = `${bottom}px`;
  window.drawn = innerWidth;
}

draw();
