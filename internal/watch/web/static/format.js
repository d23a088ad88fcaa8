// Figures and words for display. Unknown is a dash, never 0.

export const unknown = '–';

function known(v) {
  return v !== null && v !== undefined && !Number.isNaN(v);
}

function scaled(v, step, units) {
  let i = 0;
  while (i < units.length - 1 && v >= step * 0.9995) {
    v /= step;
    i++;
  }
  const digits = v >= 99.95 || Number.isInteger(v) ? 0 : v >= 9.995 ? 1 : 2;
  return v.toFixed(digits) + ' ' + units[i];
}

export function rate(bps) {
  if (!known(bps)) return unknown;
  return scaled(bps, 1000, ['b/s', 'kb/s', 'Mb/s', 'Gb/s', 'Tb/s']);
}

export function bytes(n) {
  if (!known(n) || n < 0) return unknown;
  return scaled(n, 1000, ['B', 'kB', 'MB', 'GB', 'TB', 'PB']);
}

export function count(n) {
  if (!known(n) || n < 0) return unknown;
  return Math.round(n).toLocaleString('en').replaceAll(',', '\u202f');
}

// delay formats a round-trip time in seconds; 0 is unknown.
export function delay(s) {
  if (!s || s < 0) return unknown;
  return s < 1e-3 ? scaled(s * 1e6, 1000, ['µs', 'ms']) : scaled(s * 1e3, 1000, ['ms', 's']);
}

export function seconds(v) {
  if (!known(v) || v < 0) return unknown;
  if (v < 0.001) return (v * 1e6).toFixed(0) + ' µs';
  if (v < 1) return (v * 1000).toFixed(v < 0.01 ? 1 : 0) + ' ms';
  if (v < 60) return v.toFixed(v < 10 ? 2 : 1) + ' s';
  return age(v);
}

// lagNote says how old figures of flows may be; empty: they are of this second.
export function lagNote(head) {
  return head.lag_seconds >= 2 ? `Flows are looked at in turn: figures of flows are up to ${seconds(head.lag_seconds)} old.` : '';
}

export function age(v) {
  if (!known(v)) return unknown;
  v = Math.max(0, v);
  if (v < 60) return Math.floor(v) + ' s';
  if (v < 3600) return Math.floor(v / 60) + ' min ' + Math.floor(v % 60) + ' s';
  if (v < 172800) return Math.floor(v / 3600) + ' h ' + Math.floor((v % 3600) / 60) + ' min';
  return Math.floor(v / 86400) + ' d ' + Math.floor((v % 86400) / 3600) + ' h';
}

// duration formats a time in usual units, also for axes.
export function duration(v) {
  if (!known(v) || v < 0) return unknown;
  return v < 60 ? (v > 0.001 && Number.isInteger(v) ? v + ' s' : seconds(v)) : span(v);
}

// span formats a time on an axis in its largest units.
export function span(v) {
  const parts = [];
  for (const [unit, seconds] of [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]]) {
    const n = Math.floor(v / seconds);
    if (n && parts.length < 2) parts.push(n + ' ' + unit);
    v -= n * seconds;
  }
  return parts.join(' ') || '0';
}

// elapsed formats a time on an axis.
export function elapsed(v) {
  const two = (n) => String(n).padStart(2, '0');
  const whole = Math.round(v);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return v < 60 && v !== whole ? v.toFixed(1) + ' s' : hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

export function share(v) {
  if (!known(v) || v < 0) return unknown;
  if (v === 0) return '0 %';
  if (v < 0.0001) return '< 0.01 %';
  return (v * 100).toFixed(v < 0.1 ? 2 : 1) + ' %';
}

// moment formats a local time of day, with the date if it is another day.
export function moment(text) {
  const at = new Date(text);
  const whole = at.toLocaleString('sv');
  return at.toDateString() === new Date().toDateString() ? whole.slice(11) : whole.slice(0, 16);
}

export function since(text, now) {
  return (new Date(now) - new Date(text)) / 1000;
}

// resentMark is the colour of a level of retransmissions; the relay decides the level. Low
// and unknown have none: only what deviates has a colour.
export function resentMark(level) {
  return { raised: 'warn', high: 'bad' }[level] ?? 'none';
}

export function resentCell(v, level) {
  const mark = resentMark(level);
  if (!known(v) || v < 0) return { text: unknown, title: 'nothing was sent' };
  if (mark !== 'none') return { text: share(v) + ' ' + level, level: mark };
  return { text: share(v), title: level ? '' : 'too little was sent to judge' };
}

export function resent(leg) {
  return leg.bytes_sent > 0 && leg.bytes_retransmitted >= 0 ? leg.bytes_retransmitted / leg.bytes_sent : -1;
}

export function legResent(leg) {
  return resentCell(resent(leg), leg.retransmitted_level);
}

// worseResent is of the leg with the worse level, or with the larger share.
export function worseResent(a, b) {
  const levels = ['low', 'raised', 'high'];
  const rank = (leg) => levels.indexOf(leg.retransmitted_level);
  return legResent(rank(a) > rank(b) || (rank(a) === rank(b) && resent(a) > resent(b)) ? a : b);
}

// relayName tells the relay of a record from all others, as longhaul history does: SITE/RELAY, or
// RELAY without a site of another name than its host's.
export function relayName(r) {
  return r.relay_site && r.relay_site !== r.relay?.replace(/^[^@]*@/, '') ? r.relay_site + '/' + r.relay : r.relay;
}

export function stateLevel(state) {
  switch (state) {
    case 'untried': return 'none';
    case 'listening': case 'up': case 'open': case 'whole': return 'ok';
    case 'down': case 'ejected': case 'failed': case 'removed': case 'broken': return 'bad';
    case 'lost': case 'unpaired': case 'key-unknown': case 'certificate': case 'version': case 'path-down': case 'path-mtu': case 'denied': case 'encrypt': return 'bad'; // of pairs
    case 'lossy': case 'shedding': case 'waiting': case 'paused': case 'draining': case 'drained': case 'returning': case 'same-host': case 'resetting': case 'resuming': case 'connecting': case 'busy': return 'warn';
  }
  return 'none';
}

export function plural(n, word) {
  return count(n) + ' ' + word + (n === 1 ? '' : 's');
}
