// The drawing of a chain: nodes, and legs with their figures between them.
import { h, stateMark, setText, keep } from './dom.js';
import { delay, resentMark, share } from './format.js';

// chain draws items in order: {key, node: name, role, level, state, note} or
// {key, leg: true, from, to, rtt, resent, level, lines}. level is that of the
// retransmissions; a leg of a check has lost and lossy in place of resent and level.
export function chain(label) {
  const list = h('ol', { class: 'chain', 'aria-label': label });
  return {
    element: list,
    update(items) {
      keep(list, items, (item) => item.key, (item) => item.leg ? legElement() : nodeElement());
    },
  };
}

function nodeElement() {
  const role = h('span', { class: 'role' });
  const name = h('b');
  const state = h('span');
  const note = h('small');
  const element = h('li', { class: 'node' }, role, name, state, note);
  return {
    element,
    update(item) {
      setText(role, item.role ?? '');
      setText(name, item.node);
      setText(note, item.note ?? '');
      const signature = item.level + item.state;
      if (state.signature !== signature) {
        state.signature = signature;
        state.replaceChildren(...(item.state ? [stateMark(item.level, item.state)] : []));
      }
      element.className = 'node ' + (item.level ?? '');
    },
  };
}

function legElement() {
  const rtt = h('span', { class: 'leg-rtt' });
  const resent = h('span');
  const lines = h('small');
  const words = h('div', { class: 'leg-words' }, rtt, resent, lines);
  const element = h('li', { class: 'leg' }, h('span', { class: 'wire', 'aria-hidden': 'true' }), words);
  return {
    element,
    update(item) {
      setText(rtt, item.rtt ? 'RTT ' + delay(item.rtt) : 'RTT not known');
      const mark = item.lossy ? 'warn' : resentMark(item.level);
      const unused = item.lost === undefined && !(item.resent >= 0);
      const text = item.lost !== undefined
        ? (item.lost >= 0 ? `lost ${share(item.lost)}` : 'loss not measured')
        : !unused ? `retransmitted ${share(item.resent)}` + (mark === 'none' ? '' : ' · ' + item.level) : 'nothing sent';
      if (resent.signature !== mark + text) {
        resent.signature = mark + text;
        resent.replaceChildren(stateMark(mark, text));
      }
      setText(lines, (item.lines ?? []).filter(Boolean).join(' · '));
      element.className = 'leg ' + (unused ? 'unused' : mark);
    },
  };
}

// whereResent names the leg that retransmits most, if enough was sent to say so.
export function whereResent(legs) {
  const judged = legs.filter((leg) => leg.level);
  if (!judged.length) return 'Too little was sent to say where data is retransmitted.';
  const levels = ['low', 'raised', 'high'];
  const worst = judged.reduce((a, b) => (levels.indexOf(b.level) - levels.indexOf(a.level) || b.resent - a.resent) > 0 ? b : a);
  if (worst.level === 'low') return 'No leg retransmits as much as 0.1 % of its data.';
  return `Data is retransmitted between ${worst.from} and ${worst.to}: ${share(worst.resent)}, which is ${worst.level}.`;
}
