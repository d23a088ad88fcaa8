// The causes that limit flows: now, since the start, and over the last days.
import { h, table, section, keep, setText } from '../dom.js';
import { Live, get } from '../live.js';
import { barRow } from '../charts.js';
import { flowLink } from './flows.js';
import { causeName, causeSentence } from '../causewords.js';
import * as f from '../format.js';

export default function causes(content, frame) {
  frame.title('Causes');
  const now = table({ caption: 'What limits flows now', keyOf: (x) => x.cause, empty: 'Nothing stands out: no flow is limited by anything that can be named.', columns: nowColumns });
  const since = table({ caption: 'Time for which flows were limited, since the start', keyOf: (x) => [x.cause, x.tunnel, x.leg].join(), empty: 'No flow was limited by anything that can be named.', columns: sinceColumns });
  const pastList = h('ul', { class: 'bars' });
  const pastNote = h('p', { class: 'hint' }, 'Each flow counts for what limited it for the longest.');
  const past = section('Flows that ended in the last 24 hours', pastList, pastNote);
  past.hidden = true;
  const old = h('p', { class: 'hint', hidden: true });
  content.append(h('h1', {}, 'Limiting causes'), old, section('Now', now.element), past, section('Since the start', since.element,
    h('p', { class: 'hint' }, 'The time of all flows together: two flows that are limited for a second make two seconds.')));
  let asked = 0;
  let open = true;
  const live = new Live({ view: 'causes' }, (data) => {
    frame.fine();
    frame.seen(data.head);
    setText(old, f.lagNote(data.head));
    old.hidden = !old.textContent;
    now.update(data.now);
    since.update(data.limited.slice(0, 40));
    if (data.head.history && Date.now() - asked > 30000) {
      asked = Date.now();
      get('summary', { since: '24h', source: 'relay' }).then((s) => {
        if (!open) return;
        past.hidden = false;
        showPast(pastList, s);
      }, (error) => setText(pastNote, error.message));
    }
  }, frame.trouble);
  return { close() { open = false; live.close(); } };
}

export function showPast(list, summary) {
  const total = Math.max(1, summary.flows);
  const named = summary.causes.reduce((sum, c) => sum + c.flows, 0);
  const rows = [...summary.causes, ...(summary.flows > named ? [{ cause: '', flows: summary.flows - named }] : [])].map((c) => ({
    cause: c.cause, name: c.cause ? causeName(c.cause) : 'nothing named', share: c.flows / total,
    text: f.plural(c.flows, 'flow') + ', ' + f.share(c.flows / total), title: causeSentence(c.cause),
  }));
  keep(list, rows, (row) => row.cause, barRow);
}

const nowColumns = [
  { title: 'Cause', cell: (x) => ({ text: causeName(x.cause), href: '/flows?cause=' + encodeURIComponent(x.cause), below: causeSentence(x.cause) }) },
  { title: 'Flows', number: true, cell: (x) => f.count(x.flows) },
  { title: 'Tunnels', hide: 'phone', cell: (x) => Object.entries(x.tunnels).sort((a, b) => b[1] - a[1]).map(([name, n]) => `${name} (${n})`).join(', ') },
  { title: 'Fastest of them', hide: 'phone', cell: (x) => ({ draw: (td) => drawFastest(td, x.fastest) }) },
];

function drawFastest(td, flows) {
  td.list ??= td.appendChild(h('ul', { class: 'plain' }));
  keep(td.list, flows, (x) => x.id, (x) => {
    const text = document.createTextNode('');
    return {
      element: h('li', {}, h('a', { href: flowLink(x) }, x.client), text),
      update(one) { text.data = ' ' + f.rate(one.up_bps + one.down_bps); },
    };
  });
}

const sinceColumns = [
  { title: 'Cause', cell: (x) => ({ text: causeName(x.cause), title: causeSentence(x.cause) }) },
  { title: 'Tunnel', cell: (x) => ({ text: x.tunnel, href: '/tunnels/' + encodeURIComponent(x.tunnel) }) },
  { title: 'Leg', cell: (x) => 'to the ' + x.leg },
  { title: 'Time', number: true, cell: (x) => f.age(x.seconds) },
];
