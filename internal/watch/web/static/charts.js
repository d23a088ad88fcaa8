// Charts, each with a legend that shows values, a text alternative and its data
// as a table.
import { h, s, setText, setAttribute } from './dom.js';
import { unknown } from './format.js';

// style resolves a colour of the style sheet, because a canvas cannot use its
// name.
const probe = document.body.appendChild(h('i', { hidden: true }));
const style = (name) => {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
};
const drawn = new Set();

// redraw applies the colours of another theme.
export function redraw() {
  for (const chart of drawn) chart.build();
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);

const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) target.chart?.resize(Math.floor(contentRect.width));
});

// Chart shows series over a common x: {title, series: [{label, color, fill}],
// format, x: 'time' | 'log' | 'linear' | 'span', formatX, levels: [[value,
// word, color]], top, height, whole: values are counts, stacked: each series
// stands on those behind it, mirrored: the second series grows downward, so that it covers
// nothing of the first, least: what the axis reaches at least, logY, splits: [], splitsY: []}. splits are the grid lines of a logarithmic axis. Times are in
// seconds; a span is a time since a beginning. A null value is unknown, and
// undefined does not belong to the series.
export class Chart {
  constructor(options) {
    this.options = { height: 210, ...options };
    this.data = [[], ...options.series.map(() => [])];
    this.place = h('div', { class: 'plot', role: 'img', 'aria-label': options.title });
    this.place.chart = this;
    this.values = options.series.map(() => h('b'));
    this.at = h('span', { class: 'at' });
    this.legend = h('div', { class: 'legend' }, options.series.map((one, i) =>
      h('span', { class: 'key' }, h('i', { class: 'swatch ' + one.color + (one.dash ? ' dashed' : '') }), one.label + ' ', this.values[i])), this.at);
    this.rows = h('tbody');
    this.details = h('details', { class: 'as-table', ontoggle: () => this.fillTable() },
      h('summary', {}, 'As a table'),
      h('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': options.title + ', as a table' },
        h('table', {}, h('caption', { class: 'unseen' }, options.title),
          h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, options.titleX ?? 'Time'),
            options.series.map((one) => h('th', { scope: 'col', class: 'number' }, one.label)))),
          this.rows)));
    this.element = h('div', { class: 'chart' }, this.legend, this.place, this.details);
    sizes.observe(this.place);
    drawn.add(this);
  }

  build() {
    const width = Math.floor(this.place.clientWidth);
    if (!width) return;
    this.plot?.destroy();
    const { series, format, x = 'time', levels = [], top, height, formatX, whole, logY, splits, splitsY, mirrored, least = 1e-9 } = this.options;
    const axis = { stroke: style('--muted'), grid: { stroke: style('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
    this.plot = new uPlot({
      width,
      height,
      legend: { show: false },
      cursor: { y: false, drag: { setScale: false, x: false, y: false }, points: { size: 7 } },
      scales: {
        x: x === 'time' ? { time: true } : { time: false, distr: x === 'log' ? 3 : 1 },
        y: logY ? { distr: 3, range: (u, low, high) => [low > 0 ? low / 1.5 : 0.1, high > 0 ? high * 1.5 : 10] } : mirrored ? { range: (u, low, high) => [Math.min((low ?? 0) * 1.12, -least / 4), Math.max((high ?? 0) * 1.12, least)] }
          : { range: (u, low, high) => [0, top ?? Math.max(high * 1.12, levels[0]?.[0] * 1.15 || 0, least)] },
      },
      axes: [
        { ...axis, size: 28, space: 64, ...(x === 'span' && { incrs: spans }), ...lines(splits), values: (u, at) => at.map((v) => v === null ? null : (formatX ?? clock)(v)) },
        { ...axis, size: 74, space: 42, ...(whole && { incrs: counts }), ...lines(splitsY), values: (u, at) => at.map((v) => v === null ? null : format(mirrored ? Math.abs(v) : v)) },
      ],
      series: [{}, ...series.map((one) => ({
        label: one.label, stroke: style('--' + one.color), width: 1.8, spanGaps: x === 'log', points: { show: false, filter: alone, size: 5 }, ...(mirrored && { fillTo: () => 0 }),
        fill: one.fill && style('--' + one.color + (this.options.stacked ? '-solid' : '-fill')), dash: one.dash,
      }))],
      hooks: {
        draw: [(u) => this.drawLevels(u, levels)],
        setCursor: [() => this.read()],
      },
    }, this.columns(), this.place);
    this.read();
  }

  drawLevels(u, levels) {
    const c = u.ctx;
    c.save();
    c.textAlign = 'left';
    c.textBaseline = 'alphabetic';
    c.lineWidth = devicePixelRatio;
    c.font = 10 * devicePixelRatio + 'px system-ui, sans-serif';
    let free = u.bbox.top; // below the word before
    for (const [value, word, color] of [...levels].sort((a, b) => b[0] - a[0])) {
      const y = u.valToPos(value, 'y', true);
      if (y < u.bbox.top) continue;
      c.strokeStyle = c.fillStyle = style('--' + color);
      c.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
      c.beginPath();
      c.moveTo(u.bbox.left, y);
      c.lineTo(u.bbox.left + u.bbox.width, y);
      c.stroke();
      c.setLineDash([]);
      if (y < free) continue; // no room for the word
      free = y + 14 * devicePixelRatio;
      // An edge has the word be read before a line.
      c.strokeStyle = style('--surface');
      c.lineWidth = 3 * devicePixelRatio;
      c.strokeText(word, u.bbox.left + 4 * devicePixelRatio, y - 4 * devicePixelRatio);
      c.lineWidth = devicePixelRatio;
      c.fillText(word, u.bbox.left + 4 * devicePixelRatio, y - 4 * devicePixelRatio);
    }
    c.restore();
  }

  resize(width) {
    if (!this.plot) this.build();
    else if (width && width !== this.plot.width) this.plot.setSize({ width, height: this.options.height });
  }

  // read shows the values under the cursor, or the newest, in the legend.
  read() {
    const index = this.plot?.cursor.idx ?? null;
    // A distribution, or a pair of periods, has no newest value.
    const i = index ?? (['log', 'span'].includes(this.options.x) ? -1 : this.data[0].length - 1);
    this.values.forEach((value, k) => setText(value, i < 0 ? '' : this.say(this.data[k + 1][i])));
    setText(this.at, index === null ? '' : (this.options.formatX ?? clock)(this.data[0][index]));
  }

  say(v) {
    return v === null || v === undefined ? unknown : this.options.format(v);
  }

  // set shows other data: columns, x first.
  set(data) {
    this.show(data);
    this.describe();
  }

  // follow shows appended data. Their description is not updated each
  // second.
  follow(data) {
    this.show(data);
    if (!this.described || Date.now() - this.described >= 10000 || data[0].length <= 2) this.describe();
  }

  show(data) {
    this.data = data;
    if (this.plot) this.plot.setData(this.columns());
    else this.build();
    this.read();
  }

  // columns are those of the plot. A stacked series is drawn from the axis, and the ones
  // behind it cover all but its own part.
  columns() {
    if (this.options.mirrored) {
      const [x, up, down] = this.data;
      return [x, up, down.map((v) => (v ? -v : v))];
    }
    if (!this.options.stacked) return this.data;
    const [x, ...own] = this.data;
    const sums = own.map((column, k) => x.map((_, i) => (column[i] === undefined ? null : own.slice(k).reduce((all, c) => all + (c[i] ?? 0), 0))));
    return [x, ...sums];
  }

  describe() {
    this.described = Date.now();
    const parts = this.options.series.map((one, i) => {
      const all = this.data[i + 1].filter((v) => v !== null && v !== undefined);
      if (!all.length) return one.label + ': no data';
      const mean = all.reduce((a, b) => a + b, 0) / all.length;
      return `${one.label}: last ${this.say(all.at(-1))}, mean ${this.say(mean)}, highest ${this.say(all.reduce((a, b) => Math.max(a, b)))}`;
    });
    setAttribute(this.place, 'aria-label', this.options.title + '. ' + (this.options.summary?.() ?? parts.join('; ')));
    this.fillTable();
  }

  fillTable() {
    if (!this.details.open) return;
    const n = this.data[0].length;
    const step = Math.max(1, Math.ceil(n / 20));
    const rows = [];
    for (let i = n - 1; i >= 0; i -= step) {
      rows.push(h('tr', {}, h('th', { scope: 'row' }, (this.options.formatX ?? clock)(this.data[0][i])),
        this.options.series.map((_, k) => h('td', { class: 'number' }, this.say(this.data[k + 1][i])))));
    }
    this.rows.replaceChildren(...rows);
  }

  close() {
    this.plot?.destroy();
    drawn.delete(this);
    sizes.unobserve(this.place);
  }
}

// The steps of axes: of times since a beginning, and of counts.
const spans = [10, 60, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 259200, 432000, 604800, 1209600, 2592000, 7776000, 31536000];
const counts = [1, 2, 5].flatMap((n) => Array.from({ length: 12 }, (_, i) => n * 10 ** i)).sort((a, b) => a - b);

// durations are usual times, for logarithmic axes.
export const durations = [0.0001, 0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000, 172800, 1728000];

// decades are the rates from 1 b/s, for logarithmic axes.
export const decades = Array.from({ length: 14 }, (_, i) => 10 ** i);

// lines are the default grid lines of an axis.
function lines(at) {
  return at && {
    splits: (u, axis, low, high) => at.filter((v) => v >= low && v <= high),
    // A grid line without room for its label is omitted.
    filter: (u, all, axis) => {
      let last = -Infinity;
      return all.map((v) => {
        const place = Math.abs(u.valToPos(v, axis ? 'y' : 'x') - u.valToPos(all[0], axis ? 'y' : 'x'));
        if (place - last < (axis ? 18 : 60)) return null;
        last = place;
        return v;
      });
    },
  };
}

// alone returns the positions of isolated values: their neighbours are unknown.
function alone(u, k) {
  const values = u.data[k];
  const places = [];
  let line = false; // a value stands before this one
  values.forEach((v, i) => {
    if (v === undefined) return;
    if (v !== null && !line) {
      let next = i + 1;
      while (next < values.length && values[next] === undefined) next++;
      if (next >= values.length || values[next] === null) places.push(i);
    }
    line = v !== null;
  });
  return places.length ? places : null;
}

function clock(v) {
  const at = new Date(v * 1000).toLocaleTimeString('sv');
  return at.endsWith(':00') ? at.slice(0, 5) : at;
}

// Timeline is a pair of charts of a tunnel, or of all: goodput and
// retransmissions. It follows the last ten minutes, or shows a day.
export class Timeline {
  constructor({ load, levels, format, share }) {
    this.load = load;
    this.span = 600;
    this.live = empty();
    this.goodput = new Chart({
      title: 'Goodput', format, mirrored: true, least: 1000, series: [{ label: '↑ up', color: 'up', fill: true }, { label: '↓ down', color: 'down', fill: true }],
    });
    this.resent = new Chart({ title: 'Data retransmitted', format: share, series: [{ label: 'share', color: 'loss', fill: true }], levels });
    this.buttons = [['10 min', 600], ['24 h', 86400]].map(([text, span]) =>
      h('button', { type: 'button', 'aria-pressed': String(span === 600), onclick: () => this.show(span) }, text));
    this.range = h('div', { class: 'switch', role: 'group', 'aria-label': 'Time shown' }, this.buttons);
  }

  // add appends new points and skips known ones.
  add(points) {
    const last = this.live.at.at(-1) ?? 0;
    points.at.forEach((at, i) => {
      if (at < last + 0.25) return; // a moment may differ by a little between two looks
      for (const name of Object.keys(this.live)) this.live[name].push(points[name][i]);
    });
    const old = this.live.at.findIndex((at) => at > this.live.at.at(-1) - 600);
    if (old > 0) for (const name of Object.keys(this.live)) this.live[name].splice(0, old);
    if (this.span === 600) this.draw(this.live, true);
    else if (Date.now() - this.asked > 60000) this.show(this.span);
  }

  draw(points, live) {
    const how = live ? 'follow' : 'set';
    this.goodput[how]([points.at, points.up_bps, points.down_bps]);
    this.resent[how]([points.at, points.retransmitted_share]);
  }

  async show(span) {
    this.span = span;
    this.buttons.forEach((button, i) => button.setAttribute('aria-pressed', String([600, 86400][i] === span)));
    if (span === 600) {
      this.draw(this.live);
      return;
    }
    this.asked = Date.now();
    try {
      const points = await this.load(span + 's');
      if (this.span === span) this.draw(points);
    } catch (error) {
      setText(this.goodput.at, error.message);
    }
  }

  close() {
    this.goodput.close();
    this.resent.close();
  }
}

function empty() {
  return { at: [], up_bps: [], down_bps: [], retransmitted_share: [], flows: [] };
}

// Sparkline is a small chart of values, which the text beside it states.
export class Sparkline {
  constructor() {
    this.values = [];
    this.line = s('path', { class: 'line' });
    this.area = s('path', { class: 'area' });
    this.element = s('svg', { class: 'spark', viewBox: '0 0 60 20', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, this.area, this.line);
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > 60) this.values.splice(0, this.values.length - 60);
    const high = Math.max(...this.values, 1);
    const start = 60 - this.values.length;
    const path = this.values.map((v, i) => `${i ? 'L' : 'M'}${start + i + 0.5} ${(19 - 17 * v / high).toFixed(1)}`).join('');
    this.line.setAttribute('d', path);
    this.area.setAttribute('d', path + `V20H${start + 0.5}Z`);
  }
}

// bars is a list of names with a bar each: {key, name, href, value, text,
// title}.
export function barRow() {
  const name = h('span', { class: 'bar-name' });
  const fill = s('rect', { height: '100%', rx: '3' });
  const text = h('span', { class: 'bar-text' });
  const element = h('li', {}, name, s('svg', { class: 'bar', 'aria-hidden': 'true' }, fill), text);
  return {
    element,
    update(item) {
      if (item.href) {
        const link = name.firstElementChild ?? name.appendChild(h('a', {}));
        setAttribute(link, 'href', item.href);
        setText(link, item.name);
      } else {
        setText(name, item.name);
      }
      setAttribute(fill, 'width', Math.max(item.share * 100, item.share > 0 ? 1 : 0).toFixed(1) + '%');
      setText(text, item.text);
      if (item.title) element.title = item.title;
    },
  };
}
