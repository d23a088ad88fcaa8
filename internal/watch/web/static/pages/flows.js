// The running flows, sorted, filtered and paged by the server.
import { announce, h, table, select, setText } from '../dom.js';
import { Live } from '../live.js';
import { allCauses, causeName, causeSentence } from '../causewords.js';
import * as f from '../format.js';

export function flowColumns() {
  return [
    { title: 'Client', sort: 'client', cell: (x) => ({ text: x.client || 'not known', href: flowLink(x), below: [x.state === 'open' ? '' : x.state, sampledAgo(x)].filter(Boolean).join(', ') || undefined }) },
    { title: 'Target', sort: 'target', hide: 'phone', cell: (x) => ({ text: x.target || f.unknown, below: x.hop && x.hop !== x.target ? x.hop : undefined }) },
    { title: 'Tunnel', sort: 'tunnel', hide: 'narrow', cell: (x) => ({ text: x.tunnel, href: '/tunnels/' + encodeURIComponent(x.tunnel) }) },
    { title: '↑ Up', sort: 'up', number: true, cell: (x) => f.rate(x.up_bps) },
    { title: '↓ Down', sort: 'down', number: true, cell: (x) => f.rate(x.down_bps) },
    { title: 'Both', sort: 'rate', number: true, hide: 'narrow', cell: (x) => f.rate(x.up_bps + x.down_bps) },
    { title: 'Bytes', sort: 'bytes', number: true, hide: 'phone', cell: (x) => f.bytes(x.bytes_up + x.bytes_down) },
    { title: 'Age', sort: 'age', number: true, hide: 'phone', cell: (x) => f.age(f.since(x.start, x.now ?? Date.now())) },
    { title: 'RTT', sort: 'rtt', number: true, hide: 'narrow', note: 'of the longer leg', cell: (x) => f.delay(Math.max(x.legs[0].rtt_seconds ?? 0, x.legs[1].rtt_seconds ?? 0)) },
    { title: 'Retransmitted', sort: 'resent', number: true, hide: 'phone', note: 'of the worse leg, over its life', cell: (x) => f.worseResent(...x.legs) },
    { title: 'Limited by', sort: 'cause', cell: (x) => ({ text: causeName(x.cause), title: causeSentence(x.cause) }) },
  ];
}

// sampledAgo says that a flow's figures are old, since too many flows move data to sample all each second.
export function sampledAgo(x) {
  return x.sampled_ago_seconds >= 2 ? `${f.seconds(x.sampled_ago_seconds)} ago` : '';
}

export function flowLink(x) {
  return `/flows/${x.id ?? x.flow}?start=${encodeURIComponent(x.start)}`;
}

// isName reports whether a text is the name of a flow, a UUID.
function isName(text) {
  return /^[0-9a-f]{32}$/i.test(text.replaceAll('-', ''));
}

const states = ['open', 'dialing', 'header', 'client-ended', 'target-ended', 'delivering', 'resetting', 'parked', 'resuming'];
export const causeOptions = [['', 'anything'], ...allCauses.map((c) => [c, causeName(c)])];

export default function flows(content, frame) {
  frame.title('Flows');
  const shown = { view: 'flows', sort: '-rate', page: '1', size: '30', tunnel: '', cause: '', state: '', q: '' };
  for (const name of Object.keys(shown)) if (name !== 'view' && frame.query.get(name)) shown[name] = frame.query.get(name);

  let live = null;
  let said = false;
  const change = (what) => {
    Object.assign(shown, { page: '1' }, what);
    said = !('page' in what);
    const { view, ...rest } = shown;
    if (rest.page === '1') delete rest.page;
    if (rest.sort === '-rate') delete rest.sort;
    delete rest.size;
    frame.address(rest);
    live.change(Object.fromEntries(Object.entries(shown).filter(([, v]) => v)));
  };
  const tunnel = select('Tunnel', [['', 'all'], ...(shown.tunnel ? [[shown.tunnel, shown.tunnel]] : [])], shown.tunnel, (v) => change({ tunnel: v }));
  const cause = select('Limited by', [['', 'anything'], ['none', 'nothing named'], ...causeOptions.slice(1)], shown.cause, (v) => change({ cause: v }));
  const state = select('State', [['', 'any'], ...states.map((x) => [x, x])], shown.state, (v) => change({ state: v }));
  let typing;
  const text = h('input', { type: 'search', value: shown.q, placeholder: 'address, hop or name', oninput: () => {
    clearTimeout(typing);
    typing = setTimeout(() => change({ q: text.value.trim() }), 250);
  } });
  const list = table({
    caption: 'Flows', empty: 'No flow matches.', keyOf: (x) => x.id, columns: flowColumns(),
    onsort: (name) => change({ sort: shown.sort === '-' + name ? name : '-' + name }),
  });
  const found = h('span', { class: 'found' });
  const ended = h('a', { hidden: true }, 'Look for this name among flows that have ended');
  const previous = h('button', { type: 'button', onclick: () => change({ page: String(Number(shown.page) - 1) }) }, '‹ Previous');
  const next = h('button', { type: 'button', onclick: () => change({ page: String(Number(shown.page) + 1) }) }, 'Next ›');
  content.append(
    h('h1', {}, 'Flows'),
    h('section', { class: 'card', 'aria-label': 'Flows of the moment' },
      h('div', { class: 'filters', role: 'search' }, h('label', { class: 'field' }, h('span', {}, 'Find'), text), tunnel.element, cause.element, state.element),
      list.element,
      h('nav', { class: 'pages', 'aria-label': 'Pages of flows' }, previous, found, next, ended)),
  );
  live = new Live(Object.fromEntries(Object.entries(shown).filter(([, v]) => v)), (data) => {
    frame.fine();
    frame.seen(data.head);
    tunnel.options([['', 'all'], ...data.head.tunnels.map((t) => [t, t])], shown.tunnel);
    const now = Date.parse(data.head.at);
    for (const one of data.flows) one.now = now;
    list.update(data.flows);
    list.sorted(shown.sort);
    shown.page = String(data.page);
    const many = data.matched === data.total ? f.plural(data.total, 'flow') : `${f.count(data.matched)} of ${f.plural(data.total, 'flow')}`;
    ended.hidden = data.matched > 0 || !isName(shown.q);
    ended.href = '/transfers?name=' + encodeURIComponent(shown.q);
    setText(found, `${many}, page ${data.page} of ${data.pages}`);
    previous.disabled = data.page <= 1;
    next.disabled = data.page >= data.pages;
    if (said) announce(many);
    said = false;
  }, frame.trouble);
  return { close() { clearTimeout(typing); live.close(); } };
}
