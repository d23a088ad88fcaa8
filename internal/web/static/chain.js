// The drawing of a chain: nodes, and legs with their figures between them.
import { h, badge, setText, keep } from './dom.js';
import { delay, lossLevel, share } from './format.js';

// chain draws items in order: {key, node: name, role, level, state, note} or
// {key, leg: true, from, to, rtt, loss, lines}.
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
        state.replaceChildren(...(item.state ? [badge(item.level, item.state)] : []));
      }
      element.className = 'node ' + (item.level ?? '');
    },
  };
}

function legElement() {
  const rtt = h('span', { class: 'leg-rtt' });
  const loss = h('span');
  const lines = h('small');
  const words = h('div', { class: 'leg-words' }, rtt, loss, lines);
  const element = h('li', { class: 'leg' }, h('span', { class: 'wire', 'aria-hidden': 'true' }), words);
  return {
    element,
    update(item) {
      setText(rtt, item.rtt ? 'RTT ' + delay(item.rtt) : 'RTT not known');
      const { level, word } = lossLevel(item.loss);
      const text = level === 'none' ? 'no data' : `${item.lossName ?? 'retransmitted'} ${share(item.loss)} · ${word}`;
      if (loss.signature !== level + text) {
        loss.signature = level + text;
        loss.replaceChildren(badge(level, text));
      }
      setText(lines, (item.lines ?? []).filter(Boolean).join(' · '));
      element.className = 'leg ' + level;
    },
  };
}

// whereLoss describes the leg with the most loss in a sentence.
export function whereLoss(legs) {
  const measured = legs.filter((leg) => leg.loss >= 0);
  if (!measured.length) return 'Nothing was sent lately, so nothing is known of losses.';
  const worst = measured.reduce((a, b) => (b.loss > a.loss ? b : a));
  const { level, word } = lossLevel(worst.loss);
  if (level === 'ok') return 'No leg loses as much as 0.1 %.';
  return `The loss sits between ${worst.from} and ${worst.to}: ${share(worst.loss)}, which is ${word}.`;
}
