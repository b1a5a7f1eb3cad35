// Plots, by uPlot: lines over the last ten minutes, and histograms. They follow the width of the window and the colours of
// the page.

import { duration, prefixed } from "./tables.js";

const SECONDS = 600;
const HEIGHT = 220;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const font = () => `12px ${getComputedStyle(document.body).fontFamily}`;

function axis(more) {
  const grid = { stroke: colour("grid"), width: 1 };
  return { stroke: colour("quiet"), font: font(), labelFont: font(), grid, ticks: grid, ...more };
}

const two = (number) => String(number).padStart(2, "0");

/** Times of day in 24 hours, with seconds where lines are so near. */
function times(plot, splits, axis, space, step) {
  return splits.map((second) => {
    const at = new Date(1000 * second);
    return [at.getHours(), at.getMinutes(), ...(step < 60 ? [at.getSeconds()] : [])].map(two).join(":");
  });
}

/** As short as can be: 40k. */
const short = (number) => prefixed(number).replace(".0", "").replace(/\s/g, "");

/** From nothing to a little more than the most. */
const fromZero = (plot, least, most) => [0, most > 0 ? 1.1 * most : 1];

/** What is drawn into a figure, and drawn again when its width or the colours change. */
class Plot {
  constructor(id, data) {
    this.figure = document.getElementById(id);
    this.data = data;
    this.plot = null;
    this.width = 0;
    new ResizeObserver(() => this.fit()).observe(this.figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  fit() {
    const width = Math.floor(this.figure.clientWidth);
    if (width > 0 && width !== this.width) {
      this.width = width;
      this.draw();
    }
  }

  draw() {
    if (this.width === 0) return;
    this.plot?.destroy();
    this.plot = new uPlot({ width: this.width, height: HEIGHT, ...this.options() }, this.data, this.figure);
  }

  set(data) {
    this.data = data;
    this.plot?.setData(data);
  }
}

/** What the legend says where nobody points: the last values. */
function lastValues(plot) {
  if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: plot.data[0].length - 1 });
}

/** Lines over time. Series: `name` of a colour, `label`, `dash`, `unit`. */
export class Lines extends Plot {
  constructor(id, series, unit) {
    super(id, [[], ...series.map(() => [])]);
    Object.assign(this, { series, unit });
  }

  options() {
    const unit = this.unit;
    const value = (plot, number) => number === null || number === undefined ? "–" : `${prefixed(number)}${unit}`;
    const lines = this.series.map(({ name, label, dash }) => (
      { label, stroke: colour(name), width: 2, dash, value, points: { show: false } }));
    const last = () => this.data[0].at(-1) ?? Date.now() / 1000;
    // A run that is young has its plot for itself.
    const first = () => Math.max(last() - SECONDS, Math.min(this.data[0][0] ?? last(), last() - 60));
    return {
      cursor: { drag: { x: false, y: false } },
      hooks: { setData: [lastValues], setCursor: [lastValues], ready: [lastValues] },
      scales: { x: { range: () => [first(), last()] }, y: { range: fromZero } },
      axes: [
        axis({ values: times, space: 70, size: 32 }),
        axis({ values: (plot, splits) => splits.map(short), size: 58, label: unit, labelSize: 18 }),
      ],
      series: [{ label: "Time", value: (plot, second) => second ? new Date(1000 * second).toTimeString().slice(0, 8) : "–" }, ...lines],
    };
  }
}

/** Counts by how long something took. */
export class Times extends Plot {
  constructor(id, label) {
    super(id, [[], []]);
    Object.assign(this, { label, bounds: [] });
  }

  name(at) {
    const bound = this.bounds[at];
    return bound === null ? `> ${duration(this.bounds[at - 1])}` : duration(bound);
  }

  options() {
    // Every name needs its place.
    const step = Math.ceil(this.bounds.length * 52 / Math.max(this.width - 60, 1)) || 1;
    const last = this.bounds.length - 1;
    const splits = () => this.bounds.map((_, at) => at).filter((at) => (last - at) % step === 0);
    return {
      cursor: { drag: { x: false, y: false } },
      legend: { show: false },
      hooks: { draw: [(plot) => this.counts(plot)] },
      scales: { x: { time: false, range: () => [-0.6, last + 0.6] }, y: { range: fromZero } },
      axes: [
        axis({ splits, values: (plot, all) => all.map((at) => this.name(at)), grid: { show: false }, size: 32, label: "no longer than", labelSize: 18 }),
        axis({ values: (plot, all) => all.map((it) => Number.isInteger(it) ? short(it) : ""), size: 58, label: this.label, labelSize: 18 }),
      ],
      series: [{}, {
        label: this.label, stroke: colour("accent"), fill: colour("accent"), width: 0, points: { show: false },
        paths: uPlot.paths.bars({ size: [0.8, 60], align: 0 }),
      }],
    };
  }

  /** A number above each bar. */
  counts(plot) {
    const { ctx } = plot;
    ctx.save();
    Object.assign(ctx, { fillStyle: colour("text"), textAlign: "center", textBaseline: "bottom" });
    ctx.font = `${11 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
    for (const [at, number] of this.data[1].entries()) {
      if (number > 0) {
        const text = short(number);
        ctx.fillText(text, plot.valToPos(at, "x", true), plot.valToPos(number, "y", true) - 2 * devicePixelRatio);
      }
    }
    ctx.restore();
  }

  show({ buckets }) {
    const isNew = this.bounds.length !== buckets.length;
    this.bounds = buckets.map(([bound]) => bound);
    this.data = [buckets.map((_, at) => at), buckets.map(([, number]) => number)];
    if (isNew) this.draw();
    else this.plot?.setData(this.data);
  }
}

/** The bucket in which a part of all durations is, in words; nothing where there are none. */
export function within({ buckets, count }, part) {
  let left = part * count;
  for (const [at, [bound, number]] of buckets.entries()) {
    left -= number;
    if (left <= 0 && number > 0) return bound === null ? `> ${duration(buckets[at - 1][0])}` : `≤ ${duration(bound)}`;
  }
  return "";
}
