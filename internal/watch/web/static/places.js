// Filters by relay and site, where a database of many relays answers.
import { select } from './dom.js';
import { get } from './live.js';

const all = (names) => [['', 'all'], ...names.map((n) => [n, n])];

// placeFilters makes the selects of relay, site and tunnel. The first two stay hidden without a
// database. change is called with what was chosen.
export function placeFilters(shown, change) {
  const one = (label, key) => select(label, all(shown[key] ? [shown[key]] : []), shown[key], (v) => change({ [key]: v }));
  const relay = one('Relay', 'relay');
  const site = one('Site', 'site');
  const tunnel = one('Tunnel', 'tunnel');
  relay.element.hidden = site.element.hidden = true;
  let asked = 0;
  return {
    elements: [relay.element, site.element, tunnel.element],
    // update follows the head of a live view.
    update(head) {
      relay.element.hidden = site.element.hidden = !head.database;
      if (!head.database) {
        tunnel.options(all(head.tunnels), shown.tunnel);
        return;
      }
      if (Date.now() - asked < 60e3) return;
      asked = Date.now();
      get('places').then((p) => {
        relay.options(all(p.relays), shown.relay);
        site.options(all(p.sites), shown.site);
        tunnel.options(all(p.tunnels), shown.tunnel);
      }, () => {}); // the list itself says why
    },
  };
}
