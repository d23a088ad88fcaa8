// Two periods as charts, overlaid from their beginnings.
import { h, section, setText } from './dom.js';
import { Chart, durations } from './charts.js';
import { resentLevels } from './pages/overview.js';
import * as f from './format.js';

const both = [{ label: 'before', color: 'before' }, { label: 'after', color: 'after' }];
const dash = [6, 4];

// Each chart with the values that it reads from a point, alternately before and
// after.
const charts = [
  { title: 'Goodput, both directions together', format: f.rate, of: [(p) => p.up_bps + p.down_bps] },
  { title: 'Transfers that ended', format: f.count, whole: true, of: [(p) => p.transfers] },
  { title: 'Transfer time', format: f.duration, logY: true, splitsY: durations, of: [(p) => p.transfer_time_median_seconds, (p) => p.transfer_time_p95_seconds],
    series: [{ label: 'before, median', color: 'before' }, { label: 'after, median', color: 'after' },
      { label: 'before, 95 %', color: 'before', dash }, { label: 'after, 95 %', color: 'after', dash }] },
  { title: 'Data retransmitted', format: f.share, levels: resentLevels, of: [(p) => p.retransmitted_share] },
];

// course is a card with the charts. Its input is two charts of the API.
export function course() {
  const all = charts.map((one) => ({ ...one, chart: new Chart({ series: both, x: 'span', formatX: f.span, titleX: 'From its beginning', ...one }) }));
  const note = h('p', { class: 'hint' });
  return {
    element: section('Over time', note, h('div', { class: 'pair' }, all.map((one) => h('div', {}, h('h3', {}, one.title), one.chart.element)))),
    update(before, after) {
      const steps = [before, after].map((c) => f.span((c.step_seconds ?? 0)));
      setText(note, `Both periods from their beginnings; a point is of ${steps[0] === steps[1] ? steps[0] : `${steps[0]} before and ${steps[1]} after`}. `
        + 'Goodput is laid over the lives of the flows, and the rest is of those that ended then.');
      for (const { chart, of } of all) chart.set(overlay([before, after], of));
    },
    close() { for (const { chart } of all) chart.close(); },
  };
}

// shown returns the complete steps; the incomplete last one only if it is
// alone.
function shown(c) {
  const whole = c.points.filter((p) => Date.parse(p.at) + c.step_seconds * 1e3 <= Date.parse(c.period.until));
  return whole.some((p) => p.flows) ? whole : c.points;
}

// overlay makes columns of two charts: x, and the values before and after. A
// value is undefined if only the other chart has the step.
function overlay(periods, of) {
  const rows = periods.map((c) => new Map(shown(c).map((p, i) => [i * c.step_seconds, p])));
  const x = [...new Set(rows.flatMap((r) => [...r.keys()]))].sort((a, b) => a - b);
  return [x, ...of.flatMap((value) => rows.map((r) => x.map((at) => {
    const p = r.get(at);
    if (!p) return undefined;
    const v = value(p);
    return v < 0 ? null : v;
  })))];
}
