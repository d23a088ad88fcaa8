// Elements, created and updated with few changes.

// h makes an element: h('a', {href: '/'}, 'text', child). Properties that begin
// with "on" are listeners; false, null and undefined are omitted.
export function h(tag, properties, ...children) {
  return build(document.createElement(tag), properties, children);
}

// s makes an SVG element.
export function s(tag, properties, ...children) {
  return build(document.createElementNS('http://www.w3.org/2000/svg', tag), properties, children);
}

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// setText changes a text only if it differs.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

// announce makes a screen reader speak a text after its current output.
export function announce(text) {
  setText(document.getElementById('announce'), text);
}

// badge is a state as a colour and a word.
export function badge(level, text, title) {
  return h('span', { class: 'badge ' + level, title }, text);
}

// titleBadge is a state beside the title of a page.
export function titleBadge(level, text, title) {
  return badge(level === 'ok' ? 'none' : level, text, title);
}

// stateMark is a state that has a colour only if it deviates.
export function stateMark(level, text) {
  return level === 'ok' || level === 'none' || !level ? h('span', {}, text) : badge(level, text);
}

// keep shows one child element per item. Elements are created once per key and
// then updated; moved ones keep their focus.
export function keep(parent, items, keyOf, make) {
  const known = (parent.kept ??= new Map());
  const gone = new Set(known.keys());
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    gone.delete(key);
    let one = known.get(key);
    if (!one) {
      one = make(item);
      known.set(key, one);
    }
    one.update(item);
    if (one.element === place) {
      place = place.nextElementSibling;
    } else if (one.element.parentNode === parent && parent.moveBefore) {
      parent.moveBefore(one.element, place);
    } else {
      parent.insertBefore(one.element, place);
    }
  }
  for (const key of gone) {
    known.get(key).element.remove();
    known.delete(key);
  }
}

// table makes a table of columns. On a narrow screen each row becomes a card,
// so the table sets its roles itself. A column is {title, short, cell, number,
// sort, hide, note}. A cell is a text, or {text, href, level, title, below,
// draw}: draw(td) makes its own content.
export function table({ caption, columns, keyOf, empty, rowClass, onsort }) {
  const heads = columns.map((column) => {
    const text = onsort && column.sort
      ? h('button', { type: 'button', class: 'sort', onclick: () => onsort(column.sort) }, column.title)
      : column.title;
    return h('th', { scope: 'col', role: 'columnheader', class: classes(column), title: column.note }, text);
  });
  const body = h('tbody', { role: 'rowgroup' });
  const none = h('p', { class: 'empty' }, 'Loading …'); // until the data comes
  const element = h('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': caption },
    h('table', { role: 'table', class: onsort && 'sortable' }, h('caption', { class: 'unseen' }, caption),
      h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, heads)), body), none);
  return {
    element,
    sorted(order) {
      const name = order.replace(/^-/, '');
      columns.forEach((column, i) => {
        if (!column.sort) return;
        const state = column.sort !== name ? 'none' : order.startsWith('-') ? 'descending' : 'ascending';
        setAttribute(heads[i], 'aria-sort', state);
      });
    },
    update(rows) {
      keep(body, rows, keyOf, () => newRow(columns, rowClass));
      none.hidden = rows.length > 0;
      setText(none, empty ?? 'There is nothing to show.');
    },
  };
}

function classes(column) {
  return [column.number && 'number', column.hide && 'hide-' + column.hide].filter(Boolean).join(' ') || null;
}

function newRow(columns, rowClass) {
  const cells = columns.map((column, i) => h(i === 0 ? 'th' : 'td', {
    scope: i === 0 && 'row', role: i === 0 ? 'rowheader' : 'cell', class: classes(column), 'data-label': column.title,
  }));
  const element = h('tr', { role: 'row' }, cells);
  return {
    element,
    update(row) {
      if (rowClass) element.className = rowClass(row) ?? '';
      columns.forEach((column, i) => fill(cells[i], column.cell(row)));
    },
  };
}

function fill(cell, content) {
  if (content === null || content === undefined) content = '–';
  if (typeof content !== 'object') {
    setText(cell, String(content));
    return;
  }
  if (content.draw) {
    content.draw(cell);
    return;
  }
  const signature = JSON.stringify(content);
  if (cell.signature === signature) return;
  cell.signature = signature;
  const main = content.href ? h('a', { href: content.href }, content.text) : content.level ? stateMark(content.level, content.text) : content.text;
  if (content.title) cell.title = content.title;
  // A focused link stays the same element.
  const link = cell.firstElementChild;
  if (content.href && link?.tagName === 'A') {
    link.href = content.href;
    setText(link, content.text);
    link.nextElementSibling?.remove();
  } else {
    cell.replaceChildren(main);
  }
  if (content.below) cell.append(h('small', {}, content.belowLevel ? stateMark(content.belowLevel, content.below) : content.below));
}

// facts is a list of names and values that can be updated.
export function facts(names) {
  const values = names.map(() => h('dd'));
  return {
    element: h('dl', { class: 'facts' }, names.map((name, i) => h('div', {}, h('dt', {}, name), values[i]))),
    update(...all) {
      all.forEach((content, i) => fill(values[i], content));
    },
  };
}

// section is a card with a heading.
export function section(title, ...children) {
  const head = h('h2', {}, title);
  return h('section', { class: 'card' }, h('div', { class: 'card-head' }, head), children);
}

// select is a select element with its label.
export function select(label, options, value, onchange) {
  const element = h('select', { onchange: () => onchange(element.value) });
  const choice = {
    element: h('label', { class: 'field' }, h('span', {}, label), element),
    options(all, chosen = element.value) {
      const signature = JSON.stringify(all);
      if (element.signature !== signature) {
        element.signature = signature;
        element.replaceChildren(...all.map(([key, text]) => h('option', { value: key }, text)));
      }
      element.value = chosen;
    },
    set(chosen) { element.value = chosen; },
  };
  choice.options(options, value);
  return choice;
}
