// All tunnels and all alerts.
import { h, badge, table, keep, section, setText } from '../dom.js';
import { Live, get } from '../live.js';
import { Timeline, Sparkline, barRow } from '../charts.js';
import { pairColumns, pairKey } from './pairs.js';
import { causeName, causeSentence } from '../causewords.js';
import * as f from '../format.js';

export const resentLevels = [[0.01, '1 %', 'bad'], [0.001, '0.1 %', 'warn']];

export default function overview(content, frame) {
  frame.title('Overview');
  const sparks = new Map();
  const charts = new Timeline({ load: (span) => get('points', { since: span }), levels: resentLevels, format: f.rate, share: f.share });

  const tiles = ['Goodput ↑ up', 'Goodput ↓ down', 'Flows now', 'Retransmitted', 'CPU', 'Resident memory'].map(tile);
  const alertList = h('ul', { class: 'alerts' });
  const calm = h('p', { class: 'empty' }, 'Loading …');
  const causeList = h('ul', { class: 'bars' });
  const noCauses = h('p', { class: 'empty' }, 'Loading …');
  const clients = table({ caption: 'Clients that move most', empty: 'No client has a flow now.', keyOf: (c) => c.client, columns: clientColumns });
  const tunnels = table({
    caption: 'Tunnels', empty: 'There are no tunnels.', keyOf: (t) => t.name, columns: columns(sparks),
  });
  const pairs = table({ caption: 'Pairs', keyOf: pairKey, columns: pairColumns });
  const pairCard = withHead(section('Pairs', pairs.element), h('a', { href: '/pairs' }, 'More'));
  pairCard.hidden = true;
  const old = h('p', { class: 'hint', hidden: true });
  content.append(
    h('h1', {}, 'Overview'),
    old,
    h('div', { class: 'tiles' }, tiles.map((t) => t.element)),
    section('Alerts', calm, alertList),
    h('div', { class: 'pair' },
      withHead(section('Goodput', charts.goodput.element), charts.range),
      section('Data retransmitted', charts.resent.element)),
    section('Tunnels', tunnels.element),
    pairCard,
    h('div', { class: 'pair' },
      section('Clients that move most now', clients.element),
      section('What limits flows now', noCauses, causeList)),
  );

  let process = null;
  const live = new Live({ view: 'overview' }, (data) => {
    frame.fine();
    frame.seen(data.head);
    setText(old, f.lagNote(data.head));
    old.hidden = !old.textContent;
    charts.add(data.points);
    for (const t of data.tunnels) {
      if (!sparks.has(t.name)) sparks.set(t.name, new Sparkline());
      const spark = sparks.get(t.name);
      if (t.recent) {
        spark.values = t.recent.slice(0, -1);
      }
      spark.add(t.up_bps + t.down_bps);
    }
    tunnels.update(data.tunnels);
    pairCard.hidden = !data.pairs;
    pairs.update(data.pairs ?? []);
    clients.update(data.clients);
    alerts(alertList, calm, data.head.alerts);
    const all = {};
    for (const t of data.tunnels) for (const [cause, n] of Object.entries(t.causes ?? {})) all[cause] = (all[cause] ?? 0) + n;
    showCauses(causeList, noCauses, all, data.head.flows_now);
    showTiles(tiles, data, process);
    process = { cpu: data.process.cpu_seconds, at: Date.parse(data.head.at) };
  }, frame.trouble);
  return { close() { live.close(); charts.close(); } };
}

// withHead adds an element beside a card's heading.
export function withHead(card, extra) {
  card.querySelector('.card-head').append(extra);
  return card;
}

function tile(name) {
  const value = h('b');
  const below = h('small');
  return { element: h('div', { class: 'tile' }, h('span', {}, name), value, below), value, below };
}

function showTiles([up, down, flows, again, cpu, memory], { head, process, tunnels }, before) {
  setText(up.value, f.rate(head.up_bps));
  setText(up.below, 'from clients to targets');
  setText(down.value, f.rate(head.down_bps));
  setText(down.below, 'from targets to clients');
  setText(flows.value, f.count(head.flows_now));
  setText(flows.below, 'in ' + f.plural(tunnels.length, 'tunnel'));
  setText(again.value, f.share(head.retransmitted_share));
  const level = head.retransmitted_level ?? '';
  if (again.below.dataset.level !== level) {
    again.below.dataset.level = level;
    const mark = f.resentMark(level);
    again.below.replaceChildren(mark === 'none' ? 'in the last minute' : badge(mark, level + ' in the last minute'));
  }
  const at = Date.parse(head.at);
  if (before && at > before.at) {
    const used = (process.cpu_seconds - before.cpu) / ((at - before.at) / 1000);
    setText(cpu.value, Math.max(0, used * 100).toFixed(0) + ' %');
  } else if (!before) {
    setText(cpu.value, f.unknown);
  }
  setText(cpu.below, 'of one CPU');
  setText(memory.value, f.bytes(process.resident_bytes));
  setText(memory.below, f.count(process.descriptors) + ' descriptors');
}

function alerts(list, calm, all) {
  calm.hidden = all.length > 0;
  setText(calm, 'No alerts.');
  keep(list, all, (a) => a.level + a.text.replace(/[\d.]+ %/, '') + a.link, () => {
    const mark = h('span');
    const text = h('span');
    const element = h('li', {}, mark, text);
    return {
      element,
      update(a) {
        const signature = JSON.stringify(a);
        if (element.signature === signature) return;
        element.signature = signature;
        element.className = 'alert';
        mark.replaceChildren(badge({ critical: 'bad', warning: 'warn', notice: 'info' }[a.level], a.level));
        text.replaceChildren(a.link ? h('a', { href: a.link }, a.text) : a.text);
      },
    };
  });
}

// useLevel is the colour of a tunnel: how it serves new flows, as the relay has decided.
export function useLevel(t) {
  const reason = t.usability.problems?.[0]?.reason;
  return ['draining', 'drained', 'shedding', 'near-the-limit', 'max-flows'].includes(reason) ? 'warn' : f.stateLevel(t.usability.state);
}

export function useText(t) {
  return t.usability.problems?.[0]?.reason ?? t.usability.state;
}

// hopsCell counts the hops of a tunnel by their states.
function hopsCell(t) {
  const counts = new Map();
  for (const hop of t.hops) counts.set(hop.state, (counts.get(hop.state) ?? 0) + 1);
  const [only] = counts.keys();
  const level = counts.size > 1 ? 'warn' : f.stateLevel(only);
  return { text: [...counts].map(([state, n]) => `${n} ${state}`).join(', '), level: level === 'warn' && t.hops.every((x) => x.usable) ? 'ok' : level };
}

export function showCauses(list, none, all, total) {
  const rows = Object.entries(all).sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0])).map(([cause, n]) => ({
    cause, name: causeName(cause), href: '/flows?cause=' + encodeURIComponent(cause), share: n / Math.max(1, total),
    text: f.plural(n, 'flow'), title: causeSentence(cause),
  }));
  none.hidden = rows.length > 0;
  setText(none, 'No flow is limited by anything that can be named.');
  keep(list, rows, (row) => row.cause, barRow);
}

const clientColumns = [
  { title: 'Client', cell: (c) => ({ text: c.client, href: '/flows?q=' + encodeURIComponent(c.client) }) },
  { title: 'Flows', number: true, cell: (c) => f.count(c.flows) },
  { title: '↑ Up', number: true, cell: (c) => f.rate(c.up_bps) },
  { title: '↓ Down', number: true, cell: (c) => f.rate(c.down_bps) },
  { title: 'Bytes', number: true, hide: 'phone', note: 'of its running flows', cell: (c) => f.bytes(c.bytes) },
];

function columns(sparks) {
  return [
    { title: 'Tunnel', cell: (t) => ({ text: t.name, href: '/tunnels/' + encodeURIComponent(t.name), below: useText(t) + ' since ' + f.moment(t.usability.since ?? t.since), belowLevel: useLevel(t) }) },
    { title: 'Last minute', hide: 'phone', cell: (t) => ({ draw: (td) => { const e = sparks.get(t.name).element; if (td.firstChild !== e) td.replaceChildren(e); } }) },
    { title: '↑ Up', number: true, cell: (t) => f.rate(t.up_bps) },
    { title: '↓ Down', number: true, cell: (t) => f.rate(t.down_bps) },
    { title: 'Flows now', number: true, cell: (t) => f.count(t.flows_now) },
    { title: 'Peak', number: true, hide: 'phone', cell: (t) => f.count(t.flows_peak) },
    { title: 'Limit', number: true, hide: 'phone', cell: (t) => (t.flows_limit ? f.count(t.flows_limit) : 'none') },
    { title: 'Total', number: true, hide: 'phone', cell: (t) => f.count(t.flows_total) },
    { title: 'RTT', number: true, hide: 'narrow', note: 'the median of the legs to targets', cell: (t) => f.delay(t.legs[1].median_rtt_seconds) },
    { title: 'Retransmitted', number: true, note: 'of the legs to targets, in the last minute', cell: (t) => f.resentCell(t.legs[1].retransmitted_share, t.legs[1].retransmitted_level) },
    { title: 'Hops', hide: 'narrow', cell: hopsCell },
    { title: 'Denied', number: true, hide: 'narrow', note: 'source or target not allowed, or a bad PROXY header', cell: (t) => f.count(t.denied_total) },
    { title: 'Limited', number: true, hide: 'narrow', note: 'over a limit of the tunnel, or shed while a resource was short', cell: (t) => f.count(t.limited_total + t.shed_total) },
    { title: 'Failed', number: true, hide: 'narrow', note: 'no target accepted, or ended by a reset, a timeout or lack of resources', cell: (t) => f.count(t.refused_total + t.errors_total) },
  ];
}
