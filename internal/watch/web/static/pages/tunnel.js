// One tunnel: its legs, its hops and its figures.
import { h, badge, titleBadge, table, keep, section, facts, setText } from '../dom.js';
import { Live, get } from '../live.js';
import { Timeline } from '../charts.js';
import { chain, whereResent } from '../chain.js';
import { resentLevels, withHead, showCauses, useLevel, useText } from './overview.js';
import { flowColumns } from './flows.js';
import { pairColumns, pairKey, pathTable } from './pairs.js';
import { causeName } from '../causewords.js';
import * as f from '../format.js';

export default function tunnel(content, frame, name) {
  frame.title('Tunnel ' + name);
  const charts = new Timeline({ load: (span) => get('points', { tunnel: name, since: span }), levels: resentLevels, format: f.rate, share: f.share });
  const state = h('span');
  const alertList = h('ul', { class: 'alerts' });
  const now = chain('This relay’s legs of the tunnel');
  const resent = h('p', { class: 'verdict' });
  const checked = chain('The whole chain, as the last check saw it');
  const verdict = h('p', { class: 'verdict' });
  const checkCard = section('The whole chain, as the last integrity check saw it', verdict, checked.element);
  const figures = facts(['Listens on', 'Flows now', 'Peak', 'Limit', 'Total', 'Bytes ↑ up', 'Bytes ↓ down', 'Denied', 'Limited', 'Limited: shed', 'Failed: no target', 'Failed: errors']);
  const hops = table({ caption: 'Next hops', keyOf: (x) => x.name, columns: hopColumns });
  const pairs = table({ caption: 'Pair', keyOf: pairKey, columns: pairColumns.filter((c) => c.title !== 'Tunnel') });
  const pairCard = section('Its pair', pairs.element);
  pairCard.hidden = true;
  const paths = pathTable();
  const fastest = table({ caption: 'Fastest flows', keyOf: (x) => x.id, empty: 'There are no flows now.', columns: flowColumns().filter((c) => c.title !== 'Tunnel').map((c) => ({ ...c, sort: undefined })) });
  const closed = table({ caption: 'How flows ended', keyOf: (x) => x.ended_by + x.reason, empty: 'No flow has ended yet.', columns: closedColumns });
  const causeList = h('ul', { class: 'bars' });
  const noCauses = h('p', { class: 'empty' }, 'Loading …');
  const hopNote = h('p', { class: 'hint' });
  const old = h('p', { class: 'hint', hidden: true });
  content.append(
    h('h1', {}, name, ' ', state),
    old,
    alertList,
    section('Where it leads', now.element, resent),
    checkCard,
    pairCard,
    paths.card,
    h('div', { class: 'pair' },
      withHead(section('Goodput', charts.goodput.element), charts.range),
      section('Data retransmitted', charts.resent.element)),
    section('Next hops', hops.element, hopNote),
    section('Figures', figures.element),
    h('div', { class: 'pair' },
      section('What limits its flows now', noCauses, causeList),
      section('How flows ended', closed.element)),
    withHead(section('Fastest flows', fastest.element), h('a', { href: '/flows?tunnel=' + encodeURIComponent(name) }, 'All flows')),
  );

  const live = new Live({ view: 'tunnel', name }, (data) => {
    frame.fine();
    frame.seen(data.head);
    setText(old, f.lagNote(data.head));
    old.hidden = !old.textContent;
    const t = data.tunnel;
    if (state.dataset.state !== useText(t)) {
      state.dataset.state = useText(t);
      state.replaceChildren(titleBadge(useLevel(t), useText(t), 'since ' + f.moment(t.usability.since ?? t.since)));
    }
    charts.add(data.points);
    const legs = chainOf(t);
    now.update(legs);
    setText(resent, whereResent(legs.filter((x) => x.leg)));
    showCheck(checkCard, verdict, checked, t, data.head.at);
    figures.update(
      t.listen.join(', '), f.count(t.flows_now), f.count(t.flows_peak), t.flows_limit ? f.count(t.flows_limit) : 'none', f.count(t.flows_total),
      f.bytes(t.bytes_up), f.bytes(t.bytes_down), f.count(t.denied_total), f.count(t.limited_total), f.count(t.shed_total), f.count(t.refused_total), f.count(t.errors_total));
    pairCard.hidden = !data.pairs?.length;
    pairs.update(data.pairs ?? []);
    paths.update(data.pairs, data.head.at);
    hops.update(t.hops);
    const s = t.service;
    const from = s ? `From the SRV records of ${s.name}: ${s.state === 'answered' ? s.state : `${s.state} since ${f.moment(s.since)}, ${s.error}`}. ` : '';
    setText(hopNote, `${from}Balance: ${t.balance}. Hops of the lowest priority that can be used get the flows.`);
    closed.update(t.ended ?? []);
    const at = Date.parse(data.head.at);
    for (const one of data.flows) one.now = at;
    fastest.update(data.flows);
    showCauses(causeList, noCauses, t.causes ?? {}, t.flows_now);
    const mine = data.head.alerts.filter((a) => a.link === '/tunnels/' + encodeURIComponent(name));
    keep(alertList, mine, (a) => a.text, (a) => ({
      element: h('li', { class: 'alert' }, badge({ critical: 'bad', warning: 'warn', notice: 'info' }[a.level], a.level), a.text), update() {},
    }));
  }, frame.trouble);
  return { close() { live.close(); charts.close(); } };
}

// chainOf draws the relay's own part of the chain: its clients, itself, and its
// hops. The hop with most flows is in line, the others are listed below it.
function chainOf(t) {
  const [client, target] = t.legs;
  const [main, ...others] = [...t.hops].sort((a, b) => b.flows_now - a.flows_now || b.usable - a.usable || a.priority - b.priority);
  const limited = (leg) => {
    const worst = Object.entries(leg.limited_seconds ?? {}).sort((a, b) => b[1] - a[1])[0];
    return worst && worst[1] > 0 ? 'mostly limited by ' + causeName(worst[0]) : '';
  };
  const items = [
    { key: 'clients', node: f.plural(t.flows_now, 'flow'), role: 'clients', level: 'none' },
    { key: 'client', leg: true, from: 'the clients', to: 'this relay', rtt: client.median_rtt_seconds, resent: client.retransmitted_share, level: client.retransmitted_level,
      lines: [client.p99_rtt_seconds && '99 % below ' + f.delay(client.p99_rtt_seconds), limited(client)] },
    { key: 'relay', node: t.name, role: 'this relay', level: useLevel(t), state: useText(t) },
  ];
  if (main) {
    items.push(
      { key: 'target', leg: true, from: 'this relay', to: main.name, rtt: main.rtt_seconds || target.median_rtt_seconds,
        ...(main.retransmitted_share >= 0 ? { resent: main.retransmitted_share, level: main.retransmitted_level } : { resent: target.retransmitted_share, level: target.retransmitted_level }),
        lines: [target.p99_rtt_seconds && '99 % below ' + f.delay(target.p99_rtt_seconds), limited(target)] },
      { key: 'hop', node: main.name, role: 'next hop', level: f.stateLevel(main.state), state: main.state,
        note: others.length ? 'and ' + others.map((x) => `${x.name} (${x.state})`).join(', ') : '' });
  }
  return items;
}

function showCheck(card, verdict, drawing, { name, last_check: check }, now) {
  card.hidden = !check;
  if (!check) return;
  const items = [];
  check.hops.forEach((hop, i) => {
    if (i === 0) items.push({ key: 'from', node: name, role: 'this relay', level: 'ok' });
    items.push(
      { key: 'leg' + i, leg: true, from: hop.from, to: hop.to, rtt: hop.rtt_seconds, lost: hop.loss_share, lossy: hop.state === 'lossy',
        lines: [hop.up_bps && '↑ ' + f.rate(hop.up_bps), hop.down_bps && '↓ ' + f.rate(hop.down_bps)] },
      { key: 'to' + i, node: hop.to, role: i === check.hops.length - 1 ? 'target' : 'relay', level: f.stateLevel(hop.state), state: hop.state });
  });
  drawing.update(items);
  const text = `${f.age(f.since(check.at, now))} ago: ${check.verdict}.`;
  if (verdict.dataset.ok !== String(check.ok)) {
    verdict.dataset.ok = String(check.ok);
    verdict.replaceChildren(titleBadge(check.ok ? 'ok' : 'bad', check.ok ? 'intact' : 'failed'), h('span'));
  }
  setText(verdict.lastElementChild, ' ' + text);
}

const hopColumns = [
  { title: 'Hop', cell: (x) => ({ text: x.name, below: x.last_error }) },
  { title: 'State', cell: (x) => ({ text: x.state, level: f.stateLevel(x.state) }) },
  { title: 'Since', hide: 'phone', cell: (x) => (x.since ? f.moment(x.since) : 'the start') },
  { title: 'Flows now', number: true, cell: (x) => f.count(x.flows_now) },
  { title: 'Total', number: true, hide: 'phone', cell: (x) => f.count(x.flows_total) },
  { title: 'Failures', number: true, hide: 'phone', cell: (x) => f.count(x.failed_total) },
  { title: 'RTT', number: true, hide: 'phone', cell: (x) => f.delay(x.rtt_seconds) },
  { title: 'Retransmitted', number: true, note: 'in the last minute', cell: (x) => f.resentCell(x.retransmitted_share, x.retransmitted_level) },
  { title: 'Priority', number: true, hide: 'narrow', cell: (x) => f.count(x.priority) },
  { title: 'Weight', number: true, hide: 'narrow', cell: (x) => f.count(x.weight) },
];

const closedColumns = [
  { title: 'Reason', cell: (x) => x.reason },
  { title: 'Ended by', cell: (x) => x.ended_by },
  { title: 'Flows', number: true, cell: (x) => f.count(x.flows) },
];
