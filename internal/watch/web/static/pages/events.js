// Changes of the relay's state, newest first.
import { announce, h, table, select, setText } from '../dom.js';
import { Live, polling } from '../live.js';
import * as f from '../format.js';

const kinds = [['', 'all'], ['relay', 'the relay'], ['tunnel', 'tunnels'], ['hop', 'hops'], ['pair', 'pairs'], ['path', 'paths of pairs'], ['interception', 'interception'], ['service', 'services of the DNS'], ['certificate', 'refused certificates']];

export default function events(content, frame) {
  frame.title('Events');
  const shown = { kind: frame.query.get('kind') ?? '' };
  const kind = select('Changes of', kinds, shown.kind, (v) => {
    shown.kind = v;
    frame.address(shown);
    asked.load(true);
  });
  const note = h('p', { class: 'hint' }, 'Loading …');
  const list = table({ caption: 'Events', keyOf: (e) => [e.at, e.kind, e.tunnel, e.subject, e.to].join(), empty: 'Nothing has changed.', columns });
  list.element.hidden = true;
  content.append(h('h1', {}, 'Events'),
    h('section', { class: 'card', 'aria-label': 'Changes of state' }, h('div', { class: 'filters' }, kind.element), list.element, note));

  const asked = polling('events', shown, 2000, (data, said) => {
    frame.fine();
    list.element.hidden = false;
    list.update(data.events);
    setText(note, data.events.length ? `The last ${data.events.length} changes that the relay remembers.` : '');
    if (said) announce(f.plural(data.events.length, 'change'));
  }, frame.trouble);
  const live = new Live({ view: 'head' }, (data) => frame.seen(data.head), frame.trouble);
  return { close() { asked.close(); live.close(); } };
}

const columns = [
  { title: 'Of', cell: (e) => ({ text: [e.kind, e.subject || e.tunnel].filter(Boolean).join(' '), below: e.subject && 'tunnel ' + e.tunnel, href: e.tunnel && '/tunnels/' + encodeURIComponent(e.tunnel) }) },
  { title: 'Time', cell: (e) => f.moment(e.at) },
  { title: 'From', hide: 'phone', cell: (e) => e.from },
  { title: 'To', cell: (e) => ({ text: e.to, level: f.stateLevel(e.to) }) },
  { title: 'Why', cell: (e) => e.reason ?? '' },
];
