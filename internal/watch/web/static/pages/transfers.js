// Ended flows, slowest first or in another order.
import { announce, h, table, select, setText } from '../dom.js';
import { Live, polling } from '../live.js';
import { placeFilters } from '../places.js';
import { causeOptions, flowLink } from './flows.js';
import { causeName, causeSentence } from '../causewords.js';
import * as f from '../format.js';

const orders = [['slowest', 'slowest first'], ['newest', 'newest first'], ['longest', 'longest first'], ['largest', 'largest first'], ['retransmitted', 'most retransmitted first']];
const spans = [['1h', 'last hour'], ['24h', 'last 24 hours'], ['7d', 'last 7 days'], ['30d', 'last 30 days']];

export default function transfers(content, frame) {
  frame.title('Transfers');
  const shown = { order: 'slowest', since: '24h', relay: '', site: '', tunnel: '', cause: '', client: '', limit: '', name: '' };
  for (const name of Object.keys(shown)) if (frame.query.get(name)) shown[name] = frame.query.get(name);
  const change = (what) => {
    Object.assign(shown, what);
    frame.address(shown);
    ask();
    asked.load(true);
  };
  // Of a name all records are shown, whatever their time.
  const wanted = {};
  const ask = () => Object.assign(wanted, shown, shown.name ? { since: '', order: 'newest' } : {});
  ask();
  const order = select('Order', orders, shown.order, (v) => change({ order: v }));
  const span = select('Ended in the', spans, shown.since, (v) => change({ since: v }));
  const places = placeFilters(shown, change);
  const cause = select('Limited by', causeOptions, shown.cause, (v) => change({ cause: v }));
  const name = h('input', { type: 'search', value: shown.name, size: '36', placeholder: 'of a flow', onchange: () => change({ name: name.value.trim() }) });
  const note = h('p', { class: 'hint' }, 'Loading …');
  const place = h('div');
  let list; // its columns depend on who answers
  let many;
  const more = h('button', { type: 'button', hidden: true, onclick: () => change({ limit: '500' }) }, 'Show more');
  content.append(h('h1', {}, 'Transfers'),
    h('section', { class: 'card', 'aria-label': 'Flows that have ended' },
      h('div', { class: 'filters' }, order.element, span.element, places.elements, cause.element, h('label', { class: 'field' }, h('span', {}, 'Name'), name)), place,
      h('div', { class: 'pages' }, more), note));

  const asked = polling('records', wanted, 10000, (data, said) => {
    frame.fine();
    if (!list || many !== data.database) {
      many = data.database;
      list = table({ caption: 'Transfers', keyOf: (r) => r.id || 'flow' + r.flow + r.start, empty: 'No flow of this kind has ended in this time.', columns: columns(many) });
      place.replaceChildren(list.element);
    }
    list.update(data.records);
    order.element.hidden = span.element.hidden = Boolean(shown.name);
    more.hidden = shown.limit !== '' || data.records.length < 50;
    const small = wanted.order === 'slowest' || wanted.order === 'retransmitted' ? 'Flows of less than 1 MiB are left out: they say little of a path. ' : '';
    setText(note, small + (data.history ? '' : 'This relay keeps no history: these are of its last 500 flows. Set history in its configuration to keep more.'));
    if (said) announce(f.plural(data.records.length, 'transfer'));
  }, (error) => {
    setText(note, '');
    frame.trouble(error);
  });
  const live = new Live({ view: 'head' }, (data) => {
    frame.seen(data.head);
    places.update(data.head);
  }, frame.trouble);
  return { close() { asked.close(); live.close(); } };
}

export function recordLink(r) {
  return r.id ? '/history/' + r.id : flowLink(r);
}

// columns are those of this relay's transfers, or of many relays'.
const columns = (many) => [
  { title: 'Client', cell: (r) => ({ text: r.client || 'not known', href: recordLink(r) }) },
  { title: 'Target', hide: 'phone', cell: (r) => r.target || f.unknown },
  ...(many ? [{ title: 'Relay', cell: (r) => f.relayName(r) || f.unknown }] : []),
  { title: 'Tunnel', hide: 'narrow', cell: (r) => (many ? r.tunnel : { text: r.tunnel, href: '/tunnels/' + encodeURIComponent(r.tunnel) }) },
  { title: 'Ended', hide: 'phone', cell: (r) => f.moment(r.end) },
  { title: 'Time', number: true, cell: (r) => f.seconds(r.elapsed_seconds) },
  { title: 'Bytes', number: true, hide: 'phone', cell: (r) => f.bytes(r.bytes_up + r.bytes_down) },
  { title: 'Goodput', number: true, note: 'both directions together, the mean over its life', cell: (r) => f.rate(r.elapsed_seconds > 0 ? (r.bytes_up + r.bytes_down) * 8 / r.elapsed_seconds : null) },
  { title: 'Retransmitted', number: true, hide: 'phone', note: 'of the worse leg', cell: (r) => f.worseResent(r.client_leg, r.target_leg) },
  { title: 'Limited by', cell: (r) => ({ text: causeName(r.cause), title: causeSentence(r.cause) }) },
  { title: 'Ending', hide: 'narrow', cell: (r) => `${r.reason} (${r.ended_by})` },
];
