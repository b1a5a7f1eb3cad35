// Elements from data. Text comes from the network: it becomes text nodes, and never anything else.

/** An element with children, which are elements or text. */
export function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null));
  return made;
}

const whole = new Intl.NumberFormat("en");

export const count = (number) => whole.format(number ?? 0);

/** 12.3 k, and so on; without a prefix as it is. */
export function prefixed(number, base = 1000) {
  const prefixes = ["", "k", "M", "G", "T"];
  let at = 0;
  while (Math.abs(number) >= base && at < prefixes.length - 1) {
    number /= base;
    at += 1;
  }
  const digits = at === 0 && Number.isInteger(number) || number >= 100 ? 0 : 1;
  return `${number.toFixed(digits)}\u00a0${prefixes[at]}`;
}

export const bytes = (number) => `${prefixed(number ?? 0)}B`;

/** From microseconds. */
export function duration(us) {
  if (us === undefined || us === null) return "";
  if (us < 1000) return `${round(us)}\u00a0µs`;
  return us < 1e6 ? `${round(us / 1000)}\u00a0ms` : `${round(us / 1e6)}\u00a0s`;
}

const round = (number) => number >= 100 || Number.isInteger(number) ? number.toFixed(0) : number.toPrecision(2);

export function age(seconds) {
  if (seconds === undefined) return "";
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = Math.max(parts.findIndex(([unit]) => seconds >= unit), 0);
  const [unit, name] = seconds < 1 ? parts[3] : parts[at];
  const next = parts[parts.findIndex(([it]) => it === unit) + 1];
  const rest = next ? Math.floor(seconds % unit / next[0]) : 0;
  return `${Math.floor(seconds / unit)} ${name}${rest ? ` ${rest} ${next[1]}` : ""}`;
}

/** A time of day in the browser's zone. */
export const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);

/** A bar of parts: class and how much; and what it says to who does not see it. */
export function bar(parts, total, label) {
  const spans = parts.filter(([, much]) => much > 0).map(([kind, much]) => {
    const span = element("span", { class: kind });
    span.style.width = `${100 * much / Math.max(total, 1)}%`;
    return span;
  });
  return element("div", { class: "bar", role: "img", "aria-label": label }, ...spans);
}

/**
 * A table of rows. Columns: `title`, `cell(row)` (text or an element), `key(row)` to sort by, `kind` (class of its cells).
 * Where `sorts` is set, its titles sort.
 */
export class Table {
  constructor(id, columns, { empty, sorts = false }) {
    Object.assign(this, { columns, empty, sorts, order: null, rows: [], extra: [] });
    this.table = document.getElementById(id);
    this.body = element("tbody");
    this.heads = columns.map((column, at) => {
      const title = sorts ? element("button", { type: "button" }, column.title) : column.title;
      const head = element("th", { scope: "col", class: column.kind }, title);
      if (sorts) title.addEventListener("click", () => this.sort(at));
      return head;
    });
    this.table.replaceChildren(element("thead", {}, element("tr", {}, ...this.heads)), this.body);
  }

  sort(at) {
    const down = this.order?.at === at ? !this.order.down : this.columns[at].kind === "number";
    this.order = { at, down };
    this.heads.forEach((head, place) => {
      if (place !== at) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
    this.show(this.rows, this.extra);
  }

  /** Rows, and below them some that are not sorted. */
  show(rows, extra = []) {
    Object.assign(this, { rows, extra });
    let ordered = rows;
    if (this.order) {
      const { cell, key = cell } = this.columns[this.order.at];
      const sign = this.order.down ? -1 : 1;
      const compared = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      ordered = [...rows].sort((a, b) => sign * compared(key(a) ?? "", key(b) ?? ""));
    }
    const all = [...ordered, ...extra];
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.id : undefined;
    const made = all.map((row) => element("tr", {}, ...this.columns.map(({ kind, cell }) =>
      element("td", { class: kind }, cell(row) ?? ""))));
    if (all.length === 0) {
      made.push(element("tr", {}, element("td", { class: "empty", colspan: this.columns.length }, this.empty)));
    }
    this.body.replaceChildren(...made);
    if (focused) this.body.querySelector(`button[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}

/** A button that opens a session. */
export function opener(id, text, open) {
  const button = element("button", { type: "button", "data-id": String(id) }, text);
  button.addEventListener("click", () => open(id));
  return button;
}
