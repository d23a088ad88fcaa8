// One flow while it lasts, then its record.
import { h, titleBadge, section, facts, table, setText, setAttribute } from '../dom.js';
import { Live } from '../live.js';
import { Chart } from '../charts.js';
import { chain, whereResent } from '../chain.js';
import { causeName, causeSentence } from '../causewords.js';
import * as f from '../format.js';
import { sampledAgo } from './flows.js';

export default function flow(content, frame, id) {
  frame.title('Flow ' + id);
  const parts = flowParts(content, 'Flow ' + id);
  const live = new Live({ view: 'flow', id, ...(frame.query.get('start') ? { start: frame.query.get('start') } : {}) }, (data) => {
    frame.fine();
    frame.seen(data.head);
    if (data.record) {
      parts.record(data.record);
      live.close();
      document.getElementById('live').textContent = 'ended';
      document.getElementById('live').dataset.state = 'paused';
    } else {
      parts.flow(data.flow, data.series, data.head.at);
    }
  }, frame.trouble);
  return { close() { live.close(); parts.close(); } };
}

// flowParts makes the cards of a flow or of its record.
export function flowParts(content, title) {
  const state = h('span');
  const ways = chain('The flow’s two legs');
  const resent = h('p', { class: 'verdict' });
  const cause = h('p', { class: 'verdict' });
  const figures = facts(['Tunnel', 'Hop', 'Began', 'Lasts', 'Bytes ↑ up', 'Bytes ↓ down', 'Goodput ↑ up', 'Goodput ↓ down', 'Name', 'Peer']);
  const legNames = ['Side', 'Congestion control', 'RTT', 'Least RTT', 'Data sent', 'Retransmitted'];
  const legs = [facts(legNames), facts(legNames)];
  const lanes = table({ caption: 'Its lanes', keyOf: (l) => l.local, columns: laneColumns });
  const laneCount = h('p', { class: 'verdict' });
  const lanesCourse = laneChart();
  const laneCard = section('Its lanes', laneCount, lanesCourse.element, lanes.element);
  laneCard.hidden = true;
  const ending = facts(['Ended', 'Reason', 'Ended by', 'Error', 'Resumed', 'Waited in outages']);
  const endCard = section('How it ended', ending.element);
  endCard.hidden = true;
  const chart = new Chart({ title: 'Goodput over its life', titleX: 'From its start', format: f.rate, mirrored: true, least: 1000, x: 'linear', formatX: f.elapsed,
    series: [{ label: '↑ up', color: 'up', fill: true }, { label: '↓ down', color: 'down', fill: true }], height: 230 });
  content.append(
    h('h1', {}, title, ' ', state),
    section('Its way', ways.element, resent),
    section('What limits it', cause),
    section('Goodput over its life', chart.element),
    laneCard,
    h('div', { class: 'pair three' },
      section('Figures', figures.element),
      section('Leg to the client', legs[0].element),
      section('Leg to the target', legs[1].element)),
    endCard,
  );

  function show(x, series, what, now) {
    setText(state, '');
    const level = what.ended ? 'none' : f.stateLevel(x.state);
    state.replaceChildren(titleBadge(level, what.ended ? 'ended' : x.state));
    const both = what.legs;
    const here = (what.ended && f.relayName(x)) || 'this relay';
    const items = [
      { key: 'client', node: x.client || 'not known', role: 'client', level: 'none' },
      legItem('up', 'the client', here, both[0]),
      { key: 'relay', node: x.tunnel, role: here, level: what.ended ? 'none' : 'ok' },
      legItem('down', here, 'the target', both[1]),
      { key: 'target', node: x.target || 'not connected yet', role: 'target', level: 'none', note: x.hop && x.hop !== x.target ? x.hop : '' },
    ];
    ways.update(items);
    setText(resent, whereResent(items.filter((i) => i.leg)));
    const leg = { client: ' on the leg to the client', target: ' on the leg to the target' }[x.cause_leg] ?? '';
    const howLong = x.cause_share ? `, for ${(x.cause_share * 100).toFixed(0)} % of the time in which it moved data` : '';
    const old = sampledAgo(x) ? ` These figures are of ${sampledAgo(x)}: too many flows move data to look at each every second.` : '';
    setText(cause, (x.cause ? `Limited by ${causeName(x.cause)}${leg}${howLong}. ${causeSentence(x.cause)}` : 'Nothing stands out.') + old);
    figures.update({ text: x.tunnel, href: '/tunnels/' + encodeURIComponent(x.tunnel) }, x.hop || f.unknown, f.moment(x.start), f.seconds(what.seconds),
      f.bytes(x.bytes_up), f.bytes(x.bytes_down), f.rate(what.up), f.rate(what.down),
      x.name ? { text: x.name, href: what.ended ? '/transfers?name=' + x.name : '/flows?q=' + x.name, title: 'All of it at this relay' } : f.unknown, x.peer || 'none');
    both.forEach((l, i) => legs[i].update(l.side || f.unknown, l.congestion_control || f.unknown, f.delay(l.rtt_seconds), f.delay(l.min_rtt_seconds), f.bytes(l.bytes_sent), f.legResent(l)));
    laneCard.hidden = !x.lanes;
    if (x.lanes) {
      const sum = (of) => x.lanes.reduce((all, l) => all + of(l), 0);
      const all = sum((l) => l.sent_bps + l.received_bps);
      lanes.update(x.lanes.map((l) => ({ ...l, share: all > 0 ? (l.sent_bps + l.received_bps) / all : null })));
      lanesCourse.add(Date.parse(now) / 1000, x.lanes);
      setText(laneCount, f.plural(x.lanes.length, 'connection') + ' over the WAN.');
    }
    const step = series.step_seconds;
    const n = Math.max(series.up_bps?.length ?? 0, series.down_bps?.length ?? 0);
    const at = Array.from({ length: n }, (_, i) => (i + 1) * step);
    chart.follow([at, series.up_bps ?? [], series.down_bps ?? []]);
  }

  return {
    flow(x, series, now) {
      show(x, series, { legs: x.legs, seconds: f.since(x.start, now), up: x.up_bps, down: x.down_bps }, now);
    },
    record(r) {
      const seconds = r.elapsed_seconds;
      show(r, r.goodput, { ended: true, legs: [r.client_leg, r.target_leg], seconds, up: mean(r.bytes_up, seconds), down: mean(r.bytes_down, seconds) });
      endCard.hidden = false;
      ending.update(f.moment(r.end), r.reason, r.ended_by, r.error || 'none', r.resumes ? f.plural(r.resumes, 'time') : 'never', r.outage_seconds ? f.seconds(r.outage_seconds) : 'never');
      setAttribute(content, 'data-ended', 'true');
    },
    close() {
      chart.close();
      lanesCourse.close();
    },
  };
}

// laneChart stacks what the lanes carry, both ways together, since the page was opened. It
// shows as many updates as kept.
function laneChart(kept = 300) {
  const element = h('div');
  const points = []; // [time, rates by lane]
  let names = [];
  let chart;
  return {
    element,
    add(at, each) {
      if (points.at(-1)?.[0] >= at) return;
      points.push([at, new Map(each.map((l) => [l.local, l.sent_bps + l.received_bps]))]);
      if (points.length > kept) points.shift();
      const seen = [...new Set(points.flatMap((p) => [...p[1].keys()]))];
      if (seen.join() !== names.join()) {
        names = seen;
        chart?.close();
        chart = new Chart({ title: 'What each lane carries', format: f.rate, stacked: true,
          series: names.map((name, i) => ({ label: name.slice(name.lastIndexOf(':')), color: 'lane-' + i % 4, fill: true })) });
        element.replaceChildren(chart.element);
      }
      chart.follow([points.map((p) => p[0]), ...names.map((name) => points.map((p) => p[1].get(name) ?? 0))]);
    },
    close() { chart?.close(); },
  };
}

const laneColumns = [
  { title: 'Lane', note: 'by its address here', cell: (l) => ({ text: l.local, below: l.leaving ? 'another takes its place' : undefined }) },
  { title: 'Carries', number: true, note: 'share of what all lanes carry now', cell: (l) => (l.share == null ? f.unknown : (l.share * 100).toFixed(0) + ' %') },
  { title: 'Sends', number: true, cell: (l) => f.rate(l.sent_bps) },
  { title: 'Receives', number: true, cell: (l) => f.rate(l.received_bps) },
  { title: 'RTT', number: true, cell: (l) => f.delay(l.rtt_seconds) },
  { title: 'Sent', number: true, hide: 'phone', note: 'since its connection began, for all its flows', cell: (l) => f.bytes(l.bytes_sent) },
  { title: 'Received', number: true, hide: 'phone', cell: (l) => f.bytes(l.bytes_received) },
];

function mean(bytes, seconds) {
  return seconds > 0 ? bytes * 8 / seconds : null;
}

function legItem(key, from, to, leg) {
  return { key, leg: true, from, to, rtt: leg.rtt_seconds, resent: f.resent(leg), level: leg.retransmitted_level, lines: [leg.side && leg.side.toUpperCase(), leg.congestion_control, leg.cause && 'limited by ' + causeName(leg.cause)] };
}
