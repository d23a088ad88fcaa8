// The frame of all pages: routing, navigation, theme.
import { announce, h, setText } from './dom.js';
import { redraw } from './charts.js';
import { age, since } from './format.js';
import overview from './pages/overview.js';
import flows from './pages/flows.js';
import flow from './pages/flow.js';
import tunnel from './pages/tunnel.js';
import transfers from './pages/transfers.js';
import causes from './pages/causes.js';
import pairs from './pages/pairs.js';
import events from './pages/events.js';
import history from './pages/history.js';
import record from './pages/record.js';

// The pages by path; groups in parentheses are passed to the page.
const pages = [
  [/^\/$/, overview],
  [/^\/flows$/, flows],
  [/^\/flows\/(\d+)$/, flow],
  [/^\/tunnels\/([^/]+)$/, tunnel],
  [/^\/transfers$/, transfers],
  [/^\/causes$/, causes],
  [/^\/pairs$/, pairs],
  [/^\/events$/, events],
  [/^\/history$/, history],
  [/^\/history\/(\d+)$/, record],
];

const places = [['/', 'Overview'], ['/flows', 'Flows'], ['/pairs', 'Pairs'], ['/transfers', 'Transfers'], ['/causes', 'Causes'], ['/events', 'Events'], ['/history', 'History']];
const main = document.getElementById('main');
const links = places.map(([path, name]) => h('a', { href: path }, name));
document.getElementById('nav').append(...links.map((link) => h('li', {}, link)));
const pairsPlace = links.find((link) => link.getAttribute('href') === '/pairs').parentElement;
pairsPlace.hidden = true; // until the relay has pairs

let page = null;

function visit(first) {
  page?.close?.();
  page = null;
  const path = location.pathname.replace(/(.)\/$/, '$1');
  links.forEach((link) => {
    const target = link.getAttribute('href');
    const here = target === '/' ? path === '/' || path.startsWith('/tunnels') : path === target || path.startsWith(target + '/');
    if (here) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  });
  const [pattern, open] = pages.find(([p]) => p.test(path)) ?? [];
  if (!open) {
    main.replaceChildren(h('h1', {}, 'There is no such page'), h('p', {}, h('a', { href: '/' }, 'To the overview')));
    return;
  }
  const content = h('div', { class: 'page' });
  main.replaceChildren(content);
  const frame = {
    path,
    query: new URLSearchParams(location.search),
    title(text) { document.title = text + ' – longhaul'; },
    // seen shows the relay's state in each update.
    seen: foot,
    trouble(error) {
      let note = content.querySelector(':scope > .notice');
      if (!note) {
        note = h('p', { class: 'notice', role: 'status' });
        content.prepend(note);
      }
      setText(note, error.message);
    },
    fine() { content.querySelector(':scope > .notice')?.remove(); },
    // address keeps the view in the URL, so that it can be shared.
    address(parameters) {
      const query = new URLSearchParams(Object.entries(parameters).filter(([, v]) => v));
      window.history.replaceState(null, '', path + (query.size ? '?' + query : ''));
    },
  };
  const argument = path.match(pattern)[1];
  page = open(content, frame, argument && decodeURIComponent(argument));
  if (!first) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
    announce(document.title);
  }
}

let alertsSaid = null;

const version = h('span');
const uptime = h('span');
document.getElementById('foot').append(version, uptime, h('span', {}, 'Read-only. Times are those of this browser.'));

function foot(head) {
  pairsPlace.hidden = !head.pairs;
  setText(version, head.version);
  setText(uptime, 'up for ' + age(since(head.started_at, head.at)));
  const said = head.alerts.filter((a) => a.level !== 'notice').map((a) => a.text.replace(/[\d.]+ %.*/, '')).join('. ');
  if (alertsSaid !== null && said !== alertsSaid) announce(said || 'All alerts are over');
  alertsSaid = said;
}

// Links within the dashboard change the page without a reload.
document.addEventListener('click', (event) => {
  const link = event.target.closest('a[href]');
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || url.pathname.startsWith('/api/') || link.classList.contains('skip')) return;
  event.preventDefault();
  window.history.pushState(null, '', url);
  visit();
});
addEventListener('popstate', () => visit());

const themes = ['', 'light', 'dark'];
const names = { '': 'Theme: system', light: 'Theme: light', dark: 'Theme: dark' };
const themeButton = document.getElementById('theme');

function theme() {
  return document.documentElement.dataset.theme ?? '';
}
setText(themeButton, names[theme()]);
themeButton.addEventListener('click', () => {
  const next = themes[(themes.indexOf(theme()) + 1) % themes.length];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  try {
    if (next) localStorage.setItem('longhaul-theme', next);
    else localStorage.removeItem('longhaul-theme');
  } catch { /* without storage, the theme applies to this page only */ }
  setText(themeButton, names[next]);
  redraw();
});
document.getElementById('logout').hidden = location.protocol !== 'https:';

visit(true);
