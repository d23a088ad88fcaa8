// Two periods side by side: the effect of a change.
import { announce, badge, h, keep, table, select, section, setText } from '../dom.js';
import { Live, get } from '../live.js';
import { Chart, decades, durations } from '../charts.js';
import { course } from '../course.js';
import { placeFilters } from '../places.js';
import { showPast } from './causes.js';
import * as f from '../format.js';

const day = 86400e3;
const presets = [['today', 'yesterday, and today so far'], ['1', 'last day and the day before'], ['7', 'last 7 days and the 7 before'], ['30', 'last 30 days and the 30 before'], ['own', 'own times']];

export default function history(content, frame) {
  frame.title('History');
  const q = frame.query;
  // Without a choice, the longest of these that both periods have flows of.
  const usual = q.get('days') || q.get('after_since') ? [] : ['7', 'today'];
  const shown = { days: q.get('days') ?? (q.get('after_since') ? 'own' : usual.shift()), relay: q.get('relay') ?? '', site: q.get('site') ?? '', tunnel: q.get('tunnel') ?? '' };
  const times = ['before_since', 'before_until', 'after_since', 'after_until'];
  for (const name of times) shown[name] = q.get(name) ?? '';

  const preset = select('Compare', presets, shown.days, (v) => { usual.length = 0; shown.days = v; setTimes(); load(true); });
  preset.element.classList.add('wide');
  const places = placeFilters(shown, (what) => { Object.assign(shown, what); load(true); });
  const inputs = times.map((name) => h('input', { type: 'datetime-local', onchange: () => {
    usual.length = 0;
    shown.days = 'own';
    preset.set('own');
    shown[name] = inputs[times.indexOf(name)].value && new Date(inputs[times.indexOf(name)].value).toISOString();
    load(true);
  } }));
  const field = (text, input) => h('label', { class: 'field' }, h('span', {}, text), input);
  const headline = h('p', { class: 'headline' });
  const warnings = h('ul', { class: 'alerts' });
  const loading = h('p', { class: 'empty' }, 'Loading …');
  const figures = table({ caption: 'Before and after', keyOf: (row) => row.name, columns: [
    { title: 'Figure', cell: (r) => r.name },
    { title: 'Before', number: true, cell: (r) => r.before },
    { title: 'After', number: true, cell: (r) => r.after },
    { title: 'Change', number: true, cell: (r) => r.change },
  ] });
  const series = [{ label: 'before', color: 'before' }, { label: 'after', color: 'after' }];
  const percent = (v) => Math.round(v * 100) + ' %';
  const timesChart = new Chart({ title: 'Transfer times: share of flows that took at most so long', titleX: 'Time', format: percent, x: 'log', formatX: f.duration, splits: durations, top: 1, series, height: 260 });
  const ratesChart = new Chart({ title: 'Goodput: share of flows that had at most so much', titleX: 'Goodput', format: percent, x: 'log', formatX: f.rate, splits: decades, top: 1, series, height: 260 });
  const rough = h('p', { class: 'hint' });
  const over = course();
  const lists = [h('ul', { class: 'bars' }), h('ul', { class: 'bars' })];
  const causes = [section('What limited flows before', lists[0]), section('What limited flows after', lists[1])];
  const result = h('div', { class: 'stack' },
    headline, warnings,
    h('div', { class: 'pair' },
      section('Transfer times', h('p', { class: 'hint' }, 'The share of flows that took at most so long: further to the left is faster.'), timesChart.element),
      section('Goodput', h('p', { class: 'hint' }, 'The share of flows that had at most so much: further to the right is faster.'), ratesChart.element)),
    section('Figures', figures.element, rough),
    over.element,
    h('div', { class: 'pair' }, causes));
  result.hidden = true;
  content.append(h('h1', {}, 'History: before and after'),
    h('section', { class: 'card', 'aria-label': 'Periods' },
      h('div', { class: 'filters' }, preset.element, places.elements),
      h('div', { class: 'filters periods' },
        h('fieldset', {}, h('legend', {}, h('i', { class: 'swatch before' }), 'Before'), field('from', inputs[0]), field('to', inputs[1])),
        h('fieldset', {}, h('legend', {}, h('i', { class: 'swatch after' }), 'After'), field('from', inputs[2]), field('to', inputs[3])))),
    loading, result);

  function setTimes() {
    const now = Math.ceil(Date.now() / 60e3) * 60e3;
    if (shown.days === 'today') {
      const midnight = new Date().setHours(0, 0, 0, 0);
      const before = new Date(midnight);
      before.setDate(before.getDate() - 1); // a day of a clock change has 23 or 25 hours
      [before, midnight, midnight, now].forEach((at, i) => { shown[times[i]] = new Date(at).toISOString(); });
    } else if (shown.days !== 'own') {
      const length = Number(shown.days) * day;
      [2 * length, length, length, 0].forEach((ago, i) => { shown[times[i]] = new Date(now - ago).toISOString(); });
    }
    times.forEach((name, i) => { inputs[i].value = shown[name] ? localInput(shown[name]) : ''; });
  }

  let round = 0;
  async function load(said) {
    const mine = ++round;
    frame.address(shown.days === 'own' ? shown : { days: shown.days, relay: shown.relay, site: shown.site, tunnel: shown.tunnel });
    try {
      const { days, ...asked } = shown;
      const period = (which) => get('chart', { since: asked[which + '_since'], until: asked[which + '_until'], relay: asked.relay, site: asked.site, tunnel: asked.tunnel });
      const [both, before, after] = await Promise.all([get('compare', asked), period('before'), period('after')]);
      if (mine !== round) return;
      frame.fine();
      if (!both.before.flows && usual.length) {
        shown.days = usual.shift();
        preset.set(shown.days);
        setTimes();
        load(said);
        return;
      }
      show(both);
      over.update(before, after);
      if (said) announce(headline.textContent);
    } catch (error) {
      if (mine === round) {
        result.hidden = loading.hidden = true;
        frame.trouble(error);
      }
    }
  }

  function show({ before, after, verdict, warnings: unlike }) {
    result.hidden = false;
    loading.hidden = true;
    figures.update(compareRows(before, after));
    setText(headline, verdict);
    keep(warnings, unlike ?? [], (text) => text, (text) => ({ element: h('li', { class: 'alert' }, badge('warn', 'warning'), text), update() {} }));
    [before, after].forEach((one, i) => { causes[i].hidden = !one.flows; });
    timesChart.set(join(before.transfer_time_seconds, after.transfer_time_seconds));
    ratesChart.set(join(before.goodput_bps, after.goodput_bps));
    showPast(lists[0], before);
    showPast(lists[1], after);
    const within = Math.max(before.quantile_error, after.quantile_error);
    const quantiles = `times and goodputs are right within ${(within * 100).toFixed(1).replace('.0', '')} %.`;
    setText(rough, before.approximate || after.approximate ? 'Records of these times have made room for newer ones: the figures are of whole hours, and ' + quantiles
      : within > 0.005 ? 'T' + quantiles.slice(1) : '');
    if (after.pairs_once) rough.append(' A flow through a pair counts once, where its client is.');
  }
  setTimes();
  load();
  const live = new Live({ view: 'head' }, (data) => {
    frame.seen(data.head);
    places.update(data.head);
  }, frame.trouble);
  return { close() { round++; live.close(); timesChart.close(); ratesChart.close(); over.close(); } };
}

function localInput(text) {
  return new Date(text).toLocaleString('sv').replace(' ', 'T').slice(0, 16);
}

// join makes a common x of two distributions.
function join(before, after) {
  const tables = [before, after].map(quantiles);
  const x = [...new Set(tables.flatMap(([values]) => values))].sort((a, b) => a - b);
  return [x, ...tables.map(([values, shares]) => x.map((v) => shareAt(values, shares, v)))];
}

// quantiles returns values in ascending order, each with the share of flows up
// to it.
function quantiles(d) {
  if (!d.count) return [[], []];
  const all = new Map([[d.min, 0], [d.p10, 0.1], [d.p25, 0.25], [d.p50, 0.5], [d.p75, 0.75], [d.p90, 0.9], [d.p95, 0.95], [d.p99, 0.99], [d.max, 1]]);
  const known = [...all].filter(([v]) => v > 0).sort((a, b) => a[0] - b[0]);
  return [known.map(([v]) => v), known.map(([, share]) => share)];
}

// shareAt interpolates between two quantiles; outside them the share is
// unknown.
function shareAt(values, shares, v) {
  const i = values.findIndex((one) => one >= v);
  if (i < 0 || (i === 0 && values[0] !== v)) return null;
  if (values[i] === v) return shares[i];
  const part = Math.log(v / values[i - 1]) / Math.log(values[i] / values[i - 1]);
  return shares[i - 1] + part * (shares[i] - shares[i - 1]);
}

function quantile(d, name) {
  return d.count ? d[name] : undefined;
}

function compareRows(before, after) {
  const row = (name, of, say, change) => ({ name, before: say(of(before)), after: say(of(after)), change: change ? change(of(before), of(after)) : '' });
  return [
    row('Flows', (x) => x.flows, f.count, times),
    row('Transfers among them', (x) => x.transfers, f.count, times),
    row('Bytes ↑ up', (x) => x.bytes_up, f.bytes, times),
    row('Bytes ↓ down', (x) => x.bytes_down, f.bytes, times),
    row('Transfer time, half of the flows', (x) => quantile(x.transfer_time_seconds, 'p50'), f.seconds, times),
    row('Transfer time, 90 % of the flows', (x) => quantile(x.transfer_time_seconds, 'p90'), f.seconds, times),
    row('Transfer time, 99 % of the flows', (x) => quantile(x.transfer_time_seconds, 'p99'), f.seconds, times),
    row('Goodput, median', (x) => quantile(x.goodput_bps, 'p50'), f.rate, times),
    row('Retransmitted', (x) => x.retransmitted_share, f.share, times),
    ...(before.resumed || after.resumed ? [
      row('Flows resumed by pairs', (x) => x.resumed?.flows ?? 0, f.count),
      row('Longest wait in outages', (x) => x.resumed?.longest_outage_seconds, f.seconds),
    ] : []),
  ];
}

function times(a, b) {
  if (!(a > 0) || !(b > 0)) return f.unknown;
  const factor = b / a;
  return factor >= 1 ? '× ' + factor.toFixed(factor < 10 ? 2 : 0) : '÷ ' + (1 / factor).toFixed(1 / factor < 10 ? 2 : 0);
}
