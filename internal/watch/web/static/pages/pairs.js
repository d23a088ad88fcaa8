// The pairs: sessions with other relays, their lanes and what they hold.
import { h, table, section, facts } from '../dom.js';
import { Live } from '../live.js';
import * as f from '../format.js';

export default function pairs(content, frame) {
  frame.title('Pairs');
  const sessions = table({ caption: 'Sessions', keyOf: pairKey, empty: 'There is no session yet.', columns: pairColumns });
  const paths = pathTable();
  const held = facts(['Unacknowledged data', 'Bound of it', 'This process']);
  const strangers = table({ caption: 'Connections that became part of no pair', keyOf: (x) => x.problem, empty: 'There were none since the start.', columns: strangerColumns });
  const none = h('p', { class: 'empty' }, 'No tunnel of this relay is paired.');
  const cards = [
    section('Sessions', sessions.element, h('p', { class: 'hint' },
      'A lane is a connection for data: a warm one waits for a flow, a busy one carries one. A parked flow is silent and needs no lane; a waiting one needs a lane and has none.')),
    paths.card,
    h('div', { class: 'pair' }, section('Retained', held.element, h('p', { class: 'hint' },
      'Data that was sent and not acknowledged is kept, to be sent again after an outage. At the bound the relay reads no more from senders.')),
    section('Connections that became part of no pair', strangers.element)),
  ];
  content.append(h('h1', {}, 'Pairs'), none, ...cards);
  const live = new Live({ view: 'pairs' }, (data) => {
    frame.fine();
    frame.seen(data.head);
    const p = data.pairs;
    none.hidden = Boolean(p);
    for (const card of cards) card.hidden = !p;
    if (!p) return;
    sessions.update(p.sessions);
    paths.update(p.sessions, data.head.at);
    held.update(f.bytes(p.retained_bytes), p.retained_limit_bytes ? f.bytes(p.retained_limit_bytes) : 'that of each flow', p.instance);
    strangers.update(Object.entries(p.strangers_total ?? {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]).map(([problem, n]) => ({ problem, n })));
  }, frame.trouble);
  return { close() { live.close(); } };
}

export function pairKey(s) {
  return [s.tunnel, s.peer, s.end, s.session].join();
}

export const pairColumns = [
  { title: 'Peer', cell: (s) => ({ text: s.peer, below: (s.end === 'near' ? 'near end here, to ' : 'far end here, from ') + (s.remote || 'no address yet') }) },
  { title: 'Tunnel', cell: (s) => ({ text: s.tunnel, href: '/tunnels/' + encodeURIComponent(s.tunnel) }) },
  { title: 'State', cell: (s) => ({ text: s.state, level: f.stateLevel(s.state), title: s.error, below: trouble(s) }) },
  { title: 'Since', hide: 'narrow', cell: (s) => (s.since ? f.moment(s.since) : f.unknown) },
  { title: 'RTT', number: true, cell: (s) => f.delay(s.rtt_seconds) },
  { title: 'Release', hide: 'narrow', note: 'of the other relay', cell: (s) => s.release || f.unknown },
  { title: 'Warm', number: true, note: 'lanes that wait for a flow', cell: (s) => f.count(s.lanes_warm) },
  { title: 'Busy', number: true, note: 'lanes that carry a flow', cell: (s) => f.count(s.lanes_busy) },
  { title: 'Parked', number: true, note: 'silent flows without a lane', cell: (s) => f.count(s.flows_parked) },
  { title: 'Waiting', number: true, note: 'flows that need a lane and have none', cell: (s) => f.count(s.flows_resuming) },
  { title: 'Retained', number: true, hide: 'phone', note: 'sent and not acknowledged', cell: (s) => f.bytes(s.retained_bytes) },
  { title: 'Resumes', number: true, hide: 'phone', note: 'lost lanes that others replaced', cell: (s) => f.count(s.resumes_total) },
  { title: 'Outage', number: true, hide: 'phone', note: 'time without a connection, together', cell: (s) => (s.outage_seconds ? f.seconds(s.outage_seconds) : 'none') },
];

// pathTable is a card of the paths that sessions use. What a path carries is its growth since
// the update before.
export function pathTable() {
  const rows = table({ caption: 'Paths', keyOf: (p) => p.key, columns: pathColumns });
  const card = section('Paths', rows.element);
  let before = new Map();
  return {
    card,
    update(sessions, now) {
      const at = Date.parse(now) / 1000;
      const all = (sessions ?? []).flatMap((s) => (s.paths ?? []).map((p) => ({ ...p, peer: s.peer, tunnel: s.tunnel, key: [pairKey(s), p.path].join() })));
      card.hidden = !all.length;
      rows.update(all.map((p) => {
        const was = before.get(p.key);
        const grown = (of) => (was && at > was.at && p[of] >= was[of] ? (p[of] - was[of]) * 8 / (at - was.at) : null);
        return { ...p, sent_bps: grown('sent_bytes_total'), received_bps: grown('received_bytes_total') };
      }));
      before = new Map(all.map((p) => [p.key, { ...p, at }]));
    },
  };
}

const pathColumns = [
  { title: 'Path', cell: (p) => ({ text: p.path, below: p.tunnel + ' to ' + p.peer + (p.control ? ', with the control connection' : '') }) },
  { title: 'State', cell: (p) => ({ text: p.state, level: f.stateLevel(p.state), below: p.up ? undefined : p.error }) },
  { title: 'Since', hide: 'narrow', cell: (p) => (p.since ? f.moment(p.since) : f.unknown) },
  { title: 'RTT', number: true, cell: (p) => f.delay(p.rtt_seconds) },
  { title: 'Busy', number: true, note: 'lanes that carry a flow', cell: (p) => f.count(p.lanes_busy) },
  { title: 'Sends', number: true, cell: (p) => f.rate(p.sent_bps) },
  { title: 'Receives', number: true, cell: (p) => f.rate(p.received_bps) },
  { title: 'Sent', number: true, hide: 'phone', note: 'since the session began', cell: (p) => f.bytes(p.sent_bytes_total) },
  { title: 'Received', number: true, hide: 'phone', cell: (p) => f.bytes(p.received_bytes_total) },
];

// trouble says in words why a session does not stand, or makes no lanes, what to do about
// it, and what to know of its mode.
function trouble(s) {
  const words = [...(s.notes ?? [])];
  if (s.problem_text) words.unshift(s.problem_text + (s.remedy ? ': ' + s.remedy : ''));
  if (s.up && s.lane_error) words.unshift('no new lane: ' + s.lane_error);
  return words.join('; ') || undefined;
}

const strangerColumns = [
  { title: 'Problem', cell: (x) => x.problem },
  { title: 'Connections', number: true, cell: (x) => f.count(x.n) },
];
